// The drafts of a batch as the inputs of one call of the target, in two shapes:
//
//   tree   every sequence a row: exact token, all nodes of its tree
//   rows   every path of every tree a row
//
// A token has the position that it would have in the text: its sequence's start and its
// depth.
#ifndef LATTICE_BPD_VERIFY_CALL_LAYOUT_H_
#define LATTICE_BPD_VERIFY_CALL_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/verify/prefix_tree.h"

namespace lattice_bpd {

using TreeBatchView = Span<const PrefixTree*>;

// Fills (batch, size) token ids and positions, one tree a row; after its nodes token 0 at the
// sequence's start. Throws ValueError where starts and trees differ in number or a tree has more
// nodes than `size`.
void LayOutTrees(TreeBatchView trees, Span<std::int64_t> starts, std::size_t size,
                 std::int64_t* token_ids, std::int64_t* positions);

// Fills (batch, size, size) of 0 and 1: which nodes see which, see WriteAncestorMask.
void WriteNodeMasks(TreeBatchView trees, std::size_t size, std::uint8_t* masks);

// Fills (batch, size, slots) of what is to be added to attention scores, 0 or `lowest`: row b sees
// its starts[b] old slots, and of those after them what its tree sees. Throws ValueError where they
// do not fit.
void WriteAdditiveMasks(TreeBatchView trees, Span<std::int64_t> starts, std::size_t size,
                        std::size_t slots, float lowest, float* masks);

// The paths of all trees: row b has the first path of tree b; the others follow, tree by tree.
struct RowLayout {
  std::size_t num_rows = 0;
  std::size_t size = 0;                 // tokens of a row: exact token and longest path
  std::vector<std::int64_t> token_ids;  // (num_rows, size); 0 after a path
  std::vector<std::int64_t> positions;  // (num_rows, size); the last one's after a path
  std::vector<std::int64_t> sequences;  // (num_rows,), the tree of each row
  std::vector<std::vector<std::int64_t>> node_rows;  // of each tree and node: row * size + column
};

RowLayout LayOutRows(TreeBatchView trees, Span<std::int64_t> starts);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_CALL_LAYOUT_H_
