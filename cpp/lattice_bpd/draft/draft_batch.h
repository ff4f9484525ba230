// Drafts for a batch of lattices, in the padded arrays that callers hand to a model.
#ifndef LATTICE_BPD_DRAFT_DRAFT_BATCH_H_
#define LATTICE_BPD_DRAFT_DRAFT_BATCH_H_

#include <vector>

#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/for_each_lattice.h"

namespace lattice_bpd {

// Row b, draft i: token_ids[(b * num_drafts + i) * num_slots ..] and scores[b * num_drafts + i].
// Rows past counts[b] hold kPadToken and -inf; drafts of a lattice with fewer slots end in
// kPadToken.
struct DraftBatch {
  std::size_t num_slots = 0;
  std::vector<TokenId> token_ids;
  std::vector<float> scores;
  std::vector<std::int32_t> counts;
};

// The same arrays where a caller has them already.
struct DraftRows {
  TokenId* token_ids;    // (batch, num_drafts, num_slots)
  float* scores;         // (batch, num_drafts)
  std::int32_t* counts;  // (batch,)
};

// FindDrafts for each lattice; `threads` and errors as in ForEachLattice. Writes every element.
void FindDraftBatch(const LatticeBatch& lattices, const BackoffLm* lm, const ContextsView& contexts,
                    const DraftOptions& options, int threads, const DraftRows& out);
DraftBatch FindDraftBatch(const LatticeBatch& lattices, const BackoffLm* lm,
                          const ContextsView& contexts, const DraftOptions& options,
                          int threads = 1);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_DRAFT_BATCH_H_
