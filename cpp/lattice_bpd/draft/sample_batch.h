// Sampled trees for a batch of lattices, in padded arrays.
#ifndef LATTICE_BPD_DRAFT_SAMPLE_BATCH_H_
#define LATTICE_BPD_DRAFT_SAMPLE_BATCH_H_

#include <vector>

#include "lattice_bpd/draft/for_each_lattice.h"
#include "lattice_bpd/draft/sample_tree.h"

namespace lattice_bpd {

// Node i of row b is at b * max_nodes + i; padding as in tree_batch.h.
//
//   slot_token_ids  (batch, num_slots, width): the candidates of each slot by increasing id
//   child_probs     (batch, max_nodes + 1, width): of each one after the root, then after node i;
//                   0 in the padding and after the last slot
struct SampledTreeBatch {
  std::vector<TokenId> token_ids;
  std::vector<std::int32_t> parents;
  std::vector<std::int32_t> depths;
  std::vector<float> log_probs;
  std::vector<std::int32_t> counts;
  std::size_t width = 0;
  std::vector<TokenId> slot_token_ids;
  std::vector<double> child_probs;
};

// SampleTree for each lattice, with a key and a position for each; `options` has the rest.
// `threads` and errors as in ForEachLattice; also ValueError where keys or positions are not one
// for each.
SampledTreeBatch SampleTreeBatch(const LatticeBatch& lattices, const BackoffLm* lm,
                                 const ContextsView& contexts, const SampleOptions& options,
                                 Span<std::uint64_t> keys, Span<std::uint64_t> positions,
                                 int threads);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_SAMPLE_BATCH_H_
