#include "lattice_bpd/lattice/choose_draw.h"

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
               " logits, none of them above -inf; expected a token that may be drawn"));
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

// q as it goes on without what was drawn; rest is the target's distribution as it goes on.
class Rejection {
 public:
  Rejection(const DrawnFrom& from, std::vector<double>* rest)
      : from_(from), left_(from.probs.begin(), from.probs.end()), rest_(*rest) {
    double total = 0.0;
    for (std::size_t i = 0; i < left_.size(); ++i) {
      const TokenId token = from.token_ids[i];
      if (token < 0 || static_cast<std::size_t>(token) >= rest_.size() || !(left_[i] >= 0.0)) {
        throw ValueError(StrCat("drawn_from has token ", token, " of probability ", left_[i],
                                "; expected tokens in 0..", rest_.size() - 1,
                                " and probabilities of 0 or more"));
      }
      total += left_[i];
    }
    if (!(std::fabs(total - 1.0) < 1e-3)) {
      throw ValueError(StrCat("drawn_from has probabilities that sum to ", total, "; expected 1"));
    }
    for (double& prob : left_) prob /= total;
  }

  // Whether a draw is accepted; else both distributions go on without it.
  bool Accepts(TokenId draw, double uniform) {
    const auto* at = std::find(from_.token_ids.begin(), from_.token_ids.end(), draw);
    const auto place = static_cast<std::size_t>(at - from_.token_ids.begin());
    if (place == left_.size() || left_[place] <= 0.0) {
      throw ValueError(StrCat("draft token ", draw, " has no probability left where it was drawn",
                              " from; expected draws without replacement from drawn_from"));
    }
    if (uniform * left_[place] < rest_[static_cast<std::size_t>(draw)]) return true;
    if (!TakeOff()) return true;  // the two distributions are equal but for rounding
    const double others = 1.0 - left_[place];
    left_[place] = 0.0;
    if (others > kRounding) {
      for (double& prob : left_) prob /= others;
    }
    return false;
  }

 private:
  // rest = max(rest - left, 0), normalised; false, and no change, where nothing would stay.
  bool TakeOff() {
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

  const DrawnFrom& from_;
  std::vector<double> left_;
  std::vector<double>& rest_;
};

TokenId Draw(const std::vector<double>& probs, double uniform) {
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

TokenId ChooseDraw(Span<float> logits, Span<TokenId> draws, const DrawnFrom& from,
                   const NoiseRow& noise) {
  std::vector<double> rest = Softmax(logits);
  if (!draws.empty()) {
    Rejection rejection(from, &rest);
    for (std::size_t i = 0; i < draws.size(); ++i) {
      if (rejection.Accepts(draws[i], noise.Uniform(i))) return draws[i];
    }
  }
  return Draw(rest, noise.Uniform(draws.size()));
}

}  // namespace lattice_bpd
