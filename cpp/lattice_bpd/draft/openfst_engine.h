// Engine "openfst": the reference. The sausage as an FST, then openfst_paths.h.
//
// Cost: composition O(H k^2 log V) arcs for bigrams, up to k^n states a slot for longer histories;
// ShortestPath O(p H k log p). An FST of the LM is built at the first call for each alpha.
#ifndef LATTICE_BPD_DRAFT_OPENFST_ENGINE_H_
#define LATTICE_BPD_DRAFT_OPENFST_ENGINE_H_

#include "lattice_bpd/draft/find_drafts.h"

namespace lattice_bpd {

// As FindDrafts, for checked arguments and at least one slot. Where the sausage is masked
// altogether its head scores count as 0.
void FindDraftsOpenFst(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                       const DraftOptions& options, DraftList* out);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_OPENFST_ENGINE_H_
