// How far a greedy target agrees with a tree of drafts.
#ifndef LATTICE_BPD_VERIFY_FOLLOW_GREEDY_H_
#define LATTICE_BPD_VERIFY_FOLLOW_GREEDY_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/verify/prefix_tree.h"

namespace lattice_bpd {

// The smallest index whose value is the greatest; -1 where a value is NaN.
std::int64_t Argmax(Span<float> values);

// Rows of logits, one behind the other.
struct LogitRows {
  const float* data = nullptr;
  std::size_t rows = 0;
  std::size_t vocab_size = 0;
};

// The accepted nodes, the root first, and the target's tokens behind each of them: one more than
// the accepted drafts.
struct Followed {
  std::vector<NodeNumber> nodes;
  std::vector<std::int64_t> token_ids;
};

// Walks down from node 0 as long as the target's argmax is among a node's children. The logits
// behind node i are in row places[i]; only those on the way are read. Throws ValueError for NaN
// among them, `places` of another length than the tree, or a place outside the rows.
Followed FollowGreedy(const PrefixTree& tree, const LogitRows& logits, Span<std::int64_t> places);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_FOLLOW_GREEDY_H_
