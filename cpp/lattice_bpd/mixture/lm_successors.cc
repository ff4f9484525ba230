#include "lattice_bpd/mixture/lm_successors.h"

#include <algorithm>
#include <utility>

#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/draft/fused_exponentials.h"

namespace lattice_bpd {
namespace {

constexpr std::uint32_t kScanned = 32;  // children that are compared when they are needed

}  // namespace

LmSuccessors::LmSuccessors(std::shared_ptr<const BackoffLm> lm) : lm_(std::move(lm)) {
  lists_.resize(lm_->levels().size());
  InterruptCounter interrupts;
  for (std::uint32_t level = 0; level < lists_.size(); ++level) {
    const std::uint32_t parents =
        level == 0 ? 1 : static_cast<std::uint32_t>(lm_->levels()[level - 1].size());
    for (std::uint32_t parent = 0; parent < parents; ++parent) {
      interrupts.Count();
      const auto [begin, end] = lm_->Children(level, parent);
      if (end - begin <= kScanned) continue;
      lists_[level][parent] = static_cast<std::uint32_t>(listed_.size());
      listed_.resize(listed_.size() + kMaxSuccessors);
      Select(static_cast<int>(level), begin, end, &listed_[listed_.size() - kMaxSuccessors]);
    }
  }
}

int LmSuccessors::Select(int level, std::uint32_t begin, std::uint32_t end, Listed* best) const {
  const PackedLevel& ngrams = lm_->levels()[level];
  int count = 0;
  for (std::uint32_t node = begin; node < end; ++node) {
    const float log_prob = ngrams.LogProb(node);
    if (count == kMaxSuccessors && !(log_prob > best[count - 1].log_prob)) continue;
    const Symbol token = ngrams.Key(node);
    if (!lm_->vocabulary().is_token(token)) continue;
    int at = count < kMaxSuccessors ? count++ : count - 1;
    for (; at > 0 && log_prob > best[at - 1].log_prob; --at) best[at] = best[at - 1];
    best[at] = {token, log_prob};
  }
  return count;
}

int LmSuccessors::Find(const LmState& state, Symbol vocab_size, Successor* out,
                       std::uint32_t* length, double* top) const {
  double log_probs[kMaxSuccessors], probs[kMaxSuccessors];
  int count = 0;
  double backoff = 0.0;
  *length = 0;
  for (std::uint32_t matched = state.length + 1; matched-- > 0 && count < kMaxSuccessors;) {
    const std::uint32_t parent = matched == 0 ? 0 : state.nodes[matched - 1];
    const auto [begin, end] = lm_->Children(matched, parent);
    Listed selected[kMaxSuccessors];
    const Listed* best = selected;
    int num_listed = kMaxSuccessors;
    if (end - begin <= kScanned) {
      num_listed = Select(static_cast<int>(matched), begin, end, selected);
    } else {
      best = &listed_[lists_[matched].find(parent)->second];
    }
    const int longer = count;
    for (int i = 0; i < num_listed && count < kMaxSuccessors; ++i) {
      const Symbol token = best[i].token;
      if (token >= vocab_size) continue;
      bool is_new = true;
      for (int j = 0; j < longer; ++j) is_new = is_new && out[j].token != token;
      if (!is_new) continue;
      out[count].token = token;
      log_probs[count++] = best[i].log_prob + backoff;
    }
    if (longer == 0 && count > 0) *length = matched;
    if (matched > 0) backoff += lm_->levels()[matched - 1].Backoff(parent);
  }
  std::fill(log_probs + count, log_probs + kMaxSuccessors, 0.0);
  TakeExponentials(log_probs, kMaxSuccessors, 0.0, probs);
  *top = 0.0;
  for (int i = 0; i < count; ++i) {
    out[i].prob = probs[i];
    *top = std::max(*top, probs[i]);
  }
  return count;
}

}  // namespace lattice_bpd
