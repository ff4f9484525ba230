// The sausage lattice: for each slot a few candidate tokens with their head scores. A path takes
// one candidate from every slot.
//
//   slot        0          1          2
//             /cat 2.1\  /sat 3.0\  /on 4.0\       .
//   0 -------<         >           >         > 3   2 x 2 x 1 = 4 paths
//             \dog 1.9/  \ran 0.5/
#ifndef LATTICE_BPD_LATTICE_SAUSAGE_H_
#define LATTICE_BPD_LATTICE_SAUSAGE_H_

#include <cstddef>
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
  std::size_t num_added_ = 0;  // calls of AddSlot, for error messages
  bool has_ended_ = false;     // a slot was masked altogether
};

// The lattice as bytes of an OpenFst VectorFst<StdArc>: states 0 .. num_slots in a row, an arc for
// each candidate with cost -score. Cost: O(candidates).
std::string SausageToFstBytes(const Sausage& sausage);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_SAUSAGE_H_
