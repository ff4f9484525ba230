#include "lattice_bpd/lattice/sausage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

void CheckCandidates(std::size_t slot, Span<TokenId> token_ids, Span<float> scores) {
  for (std::size_t i = 0; i < token_ids.size(); ++i) {
    if (token_ids[i] < 0) {
      throw ValueError(
          StrCat("lattice: token id ", token_ids[i], " in slot ", slot, "; expected 0 or above"));
    }
    if (!(scores[i] < std::numeric_limits<float>::infinity())) {
      throw ValueError(StrCat("lattice: score ", scores[i], " of token ", token_ids[i], " in slot ",
                              slot, "; expected a finite number, or -inf for a masked token"));
    }
  }
}

// The indices of candidates from the best to the worst.
class Ranking {
 public:
  Ranking(Span<TokenId> token_ids, Span<float> scores) : token_ids_(token_ids), scores_(scores) {
    for (std::uint32_t i = 1; i < token_ids.size(); ++i) ranked_ = ranked_ && Before(i - 1, i);
    if (ranked_) return;  // as SelectTopK gives them
    order_.resize(token_ids.size());
    std::iota(order_.begin(), order_.end(), 0u);
    std::sort(order_.begin(), order_.end(),
              [this](std::uint32_t a, std::uint32_t b) { return Before(a, b); });
  }

  std::uint32_t operator[](std::uint32_t rank) const { return ranked_ ? rank : order_[rank]; }

 private:
  bool Before(std::uint32_t a, std::uint32_t b) const {
    return scores_[a] > scores_[b] || (scores_[a] == scores_[b] && token_ids_[a] < token_ids_[b]);
  }

  Span<TokenId> token_ids_;
  Span<float> scores_;
  bool ranked_ = true;
  std::vector<std::uint32_t> order_;
};

// A token id that occurs twice, or kPadToken.
TokenId FindDoubled(Span<TokenId> token_ids) {
  constexpr std::size_t kFew = 64;  // comparing all pairs vectorises
  if (token_ids.size() <= kFew) {
    for (std::size_t i = 1; i < token_ids.size(); ++i) {
      bool doubled = false;
      for (std::size_t k = 0; k < i; ++k) doubled |= token_ids[k] == token_ids[i];
      if (doubled) return token_ids[i];
    }
    return kPadToken;
  }
  std::vector<TokenId> sorted(token_ids.begin(), token_ids.end());
  std::sort(sorted.begin(), sorted.end());
  const auto doubled = std::adjacent_find(sorted.begin(), sorted.end());
  return doubled == sorted.end() ? kPadToken : *doubled;
}

}  // namespace

void Sausage::AddSlot(Span<TokenId> token_ids, Span<float> scores) {
  AddSlot(token_ids, scores, {});
}

void Sausage::AddSlot(Span<TokenId> token_ids, Span<float> scores, Span<float> transitions) {
  const std::size_t slot = num_added_;
  if (token_ids.size() != scores.size() || token_ids.empty()) {
    throw ValueError(StrCat("lattice: slot ", slot, " has ", token_ids.size(), " token ids and ",
                            scores.size(), " scores; expected as many of both, at least one"));
  }
  if (slot == kMaxSlots) throw ValueError(StrCat("lattice: more than ", kMaxSlots, " slots"));
  CheckCandidates(slot, token_ids, scores);
  const Ranking ranking(token_ids, scores);
  ++num_added_;
  has_ended_ = has_ended_ || std::isinf(scores[ranking[0]]);
  if (has_ended_) return;
  given_before_.swap(given_);
  given_.clear();
  for (std::uint32_t rank = 0; rank < token_ids.size(); ++rank) {
    const std::uint32_t i = ranking[rank];
    if (std::isinf(scores[i])) break;
    token_ids_.push_back(token_ids[i]);
    scores_.push_back(scores[i]);
    given_.push_back(i);
  }
  begin_.push_back(token_ids_.size());
  AddTransitions(transitions, token_ids.size());
  const TokenId doubled = FindDoubled(this->token_ids(slot));
  if (doubled != kPadToken) {
    throw ValueError(StrCat("lattice: token ", doubled, " occurs twice in slot ", slot,
                            "; give each candidate once, with its best score"));
  }
}

void Sausage::AddTransitions(Span<float> transitions, std::size_t num_given) {
  const std::size_t slot = num_slots() - 1;
  const std::size_t before = slot == 0 ? 0 : num_given_;
  const bool wanted = slot < 2 ? slot == 1 && !transitions.empty() : has_transitions();
  if (transitions.size() != (wanted ? before * num_given : 0)) {
    throw ValueError(StrCat("lattice: slot ", slot, " has ", transitions.size(),
                            " transitions; expected ", wanted ? before * num_given : 0, ", ",
                            wanted      ? "one for each pair of candidates of adjacent slots"
                            : slot == 0 ? "since no slot is before it"
                                        : "since slot 1 has none"));
  }
  num_given_ = num_given;
  transitions_begin_.push_back(transitions_.size());
  if (!wanted) return;
  transitions_.resize(transitions_.size() + given_before_.size() * given_.size());
  float* out = transitions_.data() + transitions_begin_.back();
  bool finite = true;
  for (const std::uint32_t from : given_before_) {
    const float* row = transitions.data() + from * num_given;
    for (const std::uint32_t to : given_) {
      *out = row[to];
      finite &= std::isfinite(*out++);
    }
  }
  if (!finite) ThrowInfinite(transitions, num_given);
}

void Sausage::ThrowInfinite(Span<float> transitions, std::size_t num_given) const {
  for (const std::uint32_t from : given_before_) {
    for (const std::uint32_t to : given_) {
      const float score = transitions[from * num_given + to];
      if (std::isfinite(score)) continue;
      throw ValueError(StrCat("lattice: transition ", score, " from candidate ", from, " to ", to,
                              " of slot ", num_slots() - 1,
                              "; expected a finite number between candidates that are not masked"));
    }
  }
}

Sausage Sausage::AtTemperature(double temperature) const {
  const auto divide = [temperature](Span<float> scores) {
    std::vector<float> divided;
    for (const float score : scores) divided.push_back(static_cast<float>(score / temperature));
    return divided;
  };
  Sausage out;
  for (std::size_t slot = 0; slot < num_slots(); ++slot) {
    const bool has_some = slot > 0 && has_transitions();
    out.AddSlot(token_ids(slot), divide(scores(slot)),
                has_some ? divide(transitions(slot)) : std::vector<float>());
  }
  return out;
}

void Sausage::Clear() {
  begin_.resize(1);
  token_ids_.clear();
  scores_.clear();
  transitions_.clear();
  transitions_begin_.clear();
  num_added_ = 0;
  has_ended_ = false;
}

std::size_t Sausage::CountPaths(std::size_t limit) const {
  if (num_slots() == 0) return 0;
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
