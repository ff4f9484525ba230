// Engine "openfst": the reference. Composition of lattice and LM with failure arcs, p best by
// ShortestPath (paper 001, section 7.2).
//
// What is added to plain OpenFst calls: weights in double on the score grid with delta 0, so that
// ShortestPath is exact; and, where paths tie at place p, which it breaks arbitrarily, a
// depth-first walk that finds the tied paths with the smallest token ids.
//
// Cost: composition O(H k^2 log V) arcs for bigrams, up to k^n states a slot for longer histories;
// ShortestPath O(p H k log p). An FST of the LM is built at the first call for each alpha.
#ifndef LATTICE_BPD_DRAFT_OPENFST_ENGINE_H_
#define LATTICE_BPD_DRAFT_OPENFST_ENGINE_H_

#include "lattice_bpd/draft/find_drafts.h"

namespace lattice_bpd {

// As FindDrafts, for checked arguments and at least one slot. Where the sausage is masked
// altogether its head scores count as 0.
DraftList FindDraftsOpenFst(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                            const DraftOptions& options);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_OPENFST_ENGINE_H_
