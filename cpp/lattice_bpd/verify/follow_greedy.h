// The longest path of a draft tree that a greedy target accepts.
#ifndef LATTICE_BPD_VERIFY_FOLLOW_GREEDY_H_
#define LATTICE_BPD_VERIFY_FOLLOW_GREEDY_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/verify/prefix_tree.h"

namespace lattice_bpd {

// The smallest index whose value is the greatest; -1 where a value is NaN.
std::int64_t Argmax(Span<float> values);

// Rows of logits, contiguous.
struct LogitRows {
  const float* data = nullptr;
  std::size_t rows = 0;
  std::size_t vocab_size = 0;
};

// The rows of logits of the nodes of a tree: listed node by node, or, where none are
// listed, `first` and those that follow.
struct NodeRows {
  Span<std::int64_t> listed;
  std::int64_t first = 0;
};

// The accepted nodes, the root first, and the target's tokens after each of them: one more than
// the accepted drafts. `end` is the row of the last node.
struct Followed {
  std::vector<NodeNumber> nodes;
  std::vector<std::int64_t> token_ids;
  std::int64_t end = 0;
};

// Walks down from node 0 as long as the target's argmax is among a node's children; only logits on
// the way are read. Throws ValueError for NaN among them, an empty tree, listed rows of another
// length than the tree, or a row outside the logits.
Followed FollowGreedy(const PrefixTree& tree, const LogitRows& logits, const NodeRows& rows);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_FOLLOW_GREEDY_H_
