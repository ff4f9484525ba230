// Searches lattices and returns prefix trees ready for verification, without intermediate arrays.
//
// Each context ends in the exact token, which becomes node 0; nodes deeper than a sequence's
// maximum depth are left out.
#ifndef LATTICE_BPD_VERIFY_SEARCH_PREFIX_TREES_H_
#define LATTICE_BPD_VERIFY_SEARCH_PREFIX_TREES_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/for_each_lattice.h"
#include "lattice_bpd/verify/prefix_tree.h"

namespace lattice_bpd {

// The most probable prefixes of each lattice, see FindTree, with their log probabilities: after
// node 0 they are ordered by decreasing probability. `max_depths`: the longest draft of each, in
// tokens. `threads` and errors as in ForEachLattice; ValueError, too, for an empty context or
// another number of max_depths.
std::vector<PrefixTree> SearchTrees(const LatticeBatch& lattices, const BackoffLm* lm,
                                    const ContextsView& contexts, Span<std::int32_t> max_depths,
                                    double alpha, int max_nodes, int threads,
                                    Normalization normalization = Normalization::kGlobal);

// The prefix tree of the best drafts of each lattice, see FindDrafts. The rest as in SearchTrees.
std::vector<PrefixTree> SearchDrafts(const LatticeBatch& lattices, const BackoffLm* lm,
                                     const ContextsView& contexts, Span<std::int32_t> max_depths,
                                     const DraftOptions& options, int threads);

// The chain of each lattice, see FindChain, with its log probabilities. The rest as in SearchTrees.
std::vector<PrefixTree> SearchChains(const LatticeBatch& lattices, const BackoffLm* lm,
                                     const ContextsView& contexts, Span<std::int32_t> max_depths,
                                     const ChainOptions& options, int threads);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_SEARCH_PREFIX_TREES_H_
