// From lattices to drafts that are ready for verification, without arrays in between.
//
// Each context ends in the exact token, which becomes node 0; what is deeper than a sequence has
// room for is left out.
#ifndef LATTICE_BPD_VERIFY_SEARCH_PREFIX_TREES_H_
#define LATTICE_BPD_VERIFY_SEARCH_PREFIX_TREES_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/for_each_lattice.h"
#include "lattice_bpd/verify/prefix_tree.h"

namespace lattice_bpd {

// The most probable prefixes of each lattice, see FindTree, with their log probabilities: behind
// node 0 they stand by falling probability. `rooms` holds the tokens of the longest draft of each.
// `threads` and errors as in ForEachLattice; ValueError, too, for an empty context or another
// number of rooms.
std::vector<PrefixTree> SearchTrees(const LatticeBatch& lattices, const BackoffLm* lm,
                                    const ContextsView& contexts, Span<std::int32_t> rooms,
                                    double alpha, int max_nodes, int threads);

// The prefix tree of the best drafts of each lattice, see FindDrafts. The rest as in SearchTrees.
std::vector<PrefixTree> SearchDrafts(const LatticeBatch& lattices, const BackoffLm* lm,
                                     const ContextsView& contexts, Span<std::int32_t> rooms,
                                     const DraftOptions& options, int threads);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_SEARCH_PREFIX_TREES_H_
