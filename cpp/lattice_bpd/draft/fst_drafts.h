// Drafts from any acyclic weighted acceptor instead of a sausage.
#ifndef LATTICE_BPD_DRAFT_FST_DRAFTS_H_
#define LATTICE_BPD_DRAFT_FST_DRAFTS_H_

#include <string>

#include "lattice_bpd/draft/draft_batch.h"

namespace lattice_bpd {

// The best token sequences of an acceptor (lattice/acceptor.h) as a batch of one lattice, whose
// num_slots is the length of the longest draft found; shorter ones end in kPadToken.
//
//   score(w) = -(cost of w's best path) + alpha * sum of ln P(w_j | context, w_1 .. w_{j-1})
//
// In the order of FindDrafts; a draft precedes a longer one that begins with it if they tie.
// The fused engine searches what is a sausage, the openfst engine all else. Throws ValueError as
// ReadAcceptor and FindDrafts do, and where the engine is fused and the acceptor no sausage.
DraftBatch FindFstDrafts(const std::string& acceptor, const BackoffLm* lm, const LmState& start,
                         const DraftOptions& options);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FST_DRAFTS_H_
