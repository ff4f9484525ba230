#include "lattice_bpd/lattice/rejection_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr double kRounding = 1e-12;

std::vector<double> Softmax(Span<float> logits) {
  float best = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < std::numeric_limits<float>::infinity())) {
      throw ValueError(
          StrCat("the logit of token ", i, " is ", logits[i], "; expected numbers below infinity"));
    }
    best = std::max(best, logits[i]);
  }
  if (!std::isfinite(best)) {
    throw ValueError(
        StrCat("found ", logits.size(),
               " logits, none of them above -inf; expected a token that may be sampled"));
  }
  std::vector<double> probs(logits.size());
  double total = 0.0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    probs[i] = std::exp(static_cast<double>(logits[i]) - static_cast<double>(best));
    total += probs[i];
  }
  for (double& prob : probs) prob /= total;
  return probs;
}

// q without what was sampled so far; rest is the target's residual distribution.
class Rejection {
 public:
  Rejection(const DraftDistribution& from, std::vector<double>* rest)
      : from_(from), left_(from.probs.begin(), from.probs.end()), rest_(*rest) {
    double total = 0.0;
    for (std::size_t i = 0; i < left_.size(); ++i) {
      const TokenId token = from.token_ids[i];
      if (token < 0 || static_cast<std::size_t>(token) >= rest_.size() || !(left_[i] >= 0.0)) {
        throw ValueError(StrCat("the draft distribution has token ", token, " of probability ",
                                left_[i], "; expected tokens in 0..", rest_.size() - 1,
                                " and probabilities of 0 or more"));
      }
      total += left_[i];
    }
    if (!(std::fabs(total - 1.0) < 1e-3)) {
      throw ValueError(StrCat("the draft probabilities sum to ", total, "; expected 1"));
    }
    for (double& prob : left_) prob /= total;
  }

  // Whether a draft token is accepted; else both distributions continue without it.
  bool Accepts(TokenId token, double uniform, double lenience) {
    const auto* at = std::find(from_.token_ids.begin(), from_.token_ids.end(), token);
    const auto index = static_cast<std::size_t>(at - from_.token_ids.begin());
    if (index == left_.size() || left_[index] <= 0.0) {
      throw ValueError(StrCat("draft token ", token, " has no probability left; expected samples",
                              " without replacement from the draft distribution"));
    }
    if (uniform * lenience * left_[index] < rest_[static_cast<std::size_t>(token)]) return true;
    if (!SubtractDrafts()) return true;  // the two distributions are equal but for rounding
    const double others = 1.0 - left_[index];
    left_[index] = 0.0;
    if (others > kRounding) {
      for (double& prob : left_) prob /= others;
    }
    return false;
  }

 private:
  // rest = max(rest - left, 0), normalized; false, and no change, where nothing would stay.
  bool SubtractDrafts() {
    double total = 1.0;
    for (std::size_t i = 0; i < left_.size(); ++i) {
      total -= std::min(rest_[static_cast<std::size_t>(from_.token_ids[i])], left_[i]);
    }
    if (total <= kRounding) return false;
    for (std::size_t i = 0; i < left_.size(); ++i) {
      double& prob = rest_[static_cast<std::size_t>(from_.token_ids[i])];
      prob = std::max(prob - left_[i], 0.0);
    }
    double sum = 0.0;
    for (const double prob : rest_) sum += prob;
    for (double& prob : rest_) prob /= sum;
    return true;
  }

  const DraftDistribution& from_;
  std::vector<double> left_;
  std::vector<double>& rest_;
};

TokenId Sample(const std::vector<double>& probs, double uniform) {
  double sum = 0.0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < probs.size(); ++i) {
    if (probs[i] <= 0.0) continue;
    sum += probs[i];
    last = i;
    if (uniform < sum) break;
  }
  return static_cast<TokenId>(last);
}

}  // namespace

TokenId RejectionSample(Span<float> logits, Span<TokenId> draft_tokens,
                        const DraftDistribution& from, const NoiseRow& noise, double lenience) {
  std::vector<double> rest = Softmax(logits);
  if (!draft_tokens.empty()) {
    Rejection rejection(from, &rest);
    for (std::size_t i = 0; i < draft_tokens.size(); ++i) {
      if (rejection.Accepts(draft_tokens[i], noise.Uniform(i), lenience)) return draft_tokens[i];
    }
  }
  return Sample(rest, noise.Uniform(draft_tokens.size()));
}

}  // namespace lattice_bpd
