// Trees for a batch of lattices, in the padded arrays that tree attention takes.
#ifndef LATTICE_BPD_DRAFT_TREE_BATCH_H_
#define LATTICE_BPD_DRAFT_TREE_BATCH_H_

#include <vector>

#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/for_each_lattice.h"

namespace lattice_bpd {

// Node i of row b is at b * max_nodes + i. Nodes past counts[b] hold kPadToken, parent -1, depth 0
// and -inf.
//
//   attention_mask  (batch, max_nodes, max_nodes): node i sees node k, that is, k is i itself or
//                   one of its ancestors; padding sees itself
//   leaf_paths      (batch, max_leaves, num_slots): the nodes from a first token to each leaf in
//                   order of the leaves, then -1
struct TreeBatch {
  std::vector<TokenId> token_ids;
  std::vector<std::int32_t> parents;
  std::vector<std::int32_t> depths;
  std::vector<float> log_probs;
  std::vector<std::int32_t> counts;
  std::vector<std::uint8_t> attention_mask;
  std::vector<std::int32_t> leaf_paths;
  std::size_t max_leaves = 0;
};

// FindTree for each lattice; `threads` and errors as in ForEachLattice.
TreeBatch FindTreeBatch(const LatticeBatch& lattices, const BackoffLm* lm,
                        const ContextsView& contexts, double alpha, int max_nodes, int threads,
                        Normalization normalization = Normalization::kGlobal);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_TREE_BATCH_H_
