#include "lattice_bpd/lattice/sausage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

void CheckCandidate(std::size_t slot, TokenId token_id, float score) {
  if (token_id < 0) {
    throw ValueError(
        StrCat("lattice: token id ", token_id, " in slot ", slot, "; expected 0 or above"));
  }
  if (!(score < std::numeric_limits<float>::infinity())) {
    throw ValueError(StrCat("lattice: score ", score, " of token ", token_id, " in slot ", slot,
                            "; expected a finite number, or -inf for a masked token"));
  }
}

}  // namespace

void Sausage::AddSlot(Span<TokenId> token_ids, Span<float> scores) {
  const std::size_t slot = num_slots();
  if (token_ids.size() != scores.size() || token_ids.empty()) {
    throw ValueError(StrCat("lattice: slot ", slot, " has ", token_ids.size(), " token ids and ",
                            scores.size(), " scores; expected as many of both, at least one"));
  }
  if (slot == kMaxSlots) throw ValueError(StrCat("lattice: more than ", kMaxSlots, " slots"));
  std::vector<std::uint32_t> order(token_ids.size());
  std::iota(order.begin(), order.end(), 0u);
  for (const std::uint32_t i : order) CheckCandidate(slot, token_ids[i], scores[i]);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && token_ids[a] < token_ids[b]);
  });
  const bool masked = std::isinf(scores[order.front()]);
  all_masked_ = all_masked_ || masked;
  for (const std::uint32_t i : order) {
    if (!masked && std::isinf(scores[i])) break;
    token_ids_.push_back(token_ids[i]);
    scores_.push_back(scores[i]);
  }
  begin_.push_back(token_ids_.size());

  std::vector<TokenId> sorted(token_ids_.begin() + begin_[slot], token_ids_.end());
  std::sort(sorted.begin(), sorted.end());
  const auto doubled = std::adjacent_find(sorted.begin(), sorted.end());
  if (doubled != sorted.end()) {
    throw ValueError(StrCat("lattice: token ", *doubled, " stands twice in slot ", slot,
                            "; give each candidate once, with its best score"));
  }
}

std::size_t Sausage::CountPaths(std::size_t limit) const {
  std::size_t count = 1;
  for (std::size_t slot = 0; slot < num_slots(); ++slot) {
    if (count >= (limit + width(slot) - 1) / width(slot)) return limit;
    count *= width(slot);
  }
  return std::min(count, limit);
}

TokenId Sausage::max_token_id() const {
  return *std::max_element(token_ids_.begin(), token_ids_.end());
}

}  // namespace lattice_bpd
