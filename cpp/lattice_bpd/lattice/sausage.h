// The sausage lattice: for each slot a few candidate tokens with their head scores. A path takes
// one candidate from every slot.
//
//   slot        0          1          2
//             /cat 2.1\  /sat 3.0\  /on 4.0\       .
//   0 -------<         >           >         > 3   2 x 2 x 1 = 4 paths
//             \dog 1.9/  \ran 0.5/
//
// Transitions, where a lattice has them, score each pair of candidates of adjacent slots as well: a
// path's score is the sum of its candidates' scores and of its transitions'.
#ifndef LATTICE_BPD_LATTICE_SAUSAGE_H_
#define LATTICE_BPD_LATTICE_SAUSAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

constexpr std::size_t kMaxSlots = 1024;

// A value. The candidates of a slot are distinct token ids, by decreasing score, equal scores by
// rising token id. Masked candidates (-inf) are left out. No path leads through a slot whose
// candidates are all masked, so the lattice ends before it: that slot and those after it are left
// out too. A lattice without slots has no path.
class Sausage {
 public:
  Sausage() = default;

  // Adds a slot from candidates in any order: sorts them and drops masked ones. Where all are
  // masked the lattice has ended, and later slots are checked but not kept.
  // Throws ValueError for no candidate, a negative or doubled token id, NaN or +inf. Allocates
  // nothing once warm where the candidates are sorted already and up to 64.
  void AddSlot(Span<TokenId> token_ids, Span<float> scores);

  // The same with transitions: entry a * token_ids.size() + c is that from the a-th to the c-th
  // candidate, as they were given for the slot before and are given for this one; those of masked
  // candidates are not read. Throws ValueError where one is not finite or their number is wrong,
  // and where some slots after the first have transitions and others have none.
  void AddSlot(Span<TokenId> token_ids, Span<float> scores, Span<float> transitions);

  bool has_transitions() const { return !transitions_.empty(); }

  // From slot - 1: (width(slot - 1), width(slot)) in the order of token_ids(), for slots above 0 of
  // a lattice that has transitions.
  Span<float> transitions(std::size_t slot) const {
    return {transitions_.data() + transitions_begin_[slot], width(slot - 1) * width(slot)};
  }

  // The same candidates and transitions with scores divided by a temperature above 0.
  Sausage AtTemperature(double temperature) const;

  // Back to no slots; keeps its memory.
  void Clear();

  std::size_t num_slots() const { return begin_.size() - 1; }
  std::size_t width(std::size_t slot) const { return begin_[slot + 1] - begin_[slot]; }
  Span<TokenId> token_ids(std::size_t slot) const {
    return {token_ids_.data() + begin_[slot], width(slot)};
  }
  Span<float> scores(std::size_t slot) const {
    return {scores_.data() + begin_[slot], width(slot)};
  }

  std::size_t num_candidates() const { return token_ids_.size(); }

  // The number of paths, or `limit` where there are at least so many; 0 without slots.
  std::size_t CountPaths(std::size_t limit) const;

  // The largest token id and its slot; slots must not be empty.
  TokenId max_token_id() const;

 private:
  std::vector<std::size_t> begin_ = {0};
  std::vector<TokenId> token_ids_;
  std::vector<float> scores_;
  void AddTransitions(Span<float> transitions, std::size_t num_given);
  void ThrowInfinite(Span<float> transitions, std::size_t num_given) const;

  std::vector<float> transitions_;                   // of all slots
  std::vector<std::size_t> transitions_begin_;       // of each slot
  std::vector<std::uint32_t> given_, given_before_;  // of the candidates kept in the last slot and
                                                     // the one before: indices in what was given
  std::size_t num_given_ = 0;                        // candidates of the last slot, masked or not
  std::size_t num_added_ = 0;                        // calls of AddSlot, for error messages
  bool has_ended_ = false;                           // a slot was masked altogether
};

// The lattice as bytes of an OpenFst VectorFst<StdArc>: states 0 .. num_slots in a row, an arc for
// each candidate with cost -score; with transitions a state for each candidate (sausage_fst.h).
// Cost: O(candidates and transitions).
std::string SausageToFstBytes(const Sausage& sausage);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_SAUSAGE_H_
