// Drafts for a batch of lattices, in the padded arrays that callers hand to a model.
#ifndef LATTICE_BPD_DRAFT_DRAFT_BATCH_H_
#define LATTICE_BPD_DRAFT_DRAFT_BATCH_H_

#include <vector>

#include "lattice_bpd/draft/find_drafts.h"

namespace lattice_bpd {

// Contexts of different lengths one behind the other: context b is
// token_ids[offsets[b] .. offsets[b + 1] - 1].
struct ContextsView {
  Span<TokenId> token_ids;
  Span<std::int64_t> offsets;
  bool bos = true;  // <s> stands before each context
};

// Row b, draft i: token_ids[(b * num_drafts + i) * num_slots ..] and scores[b * num_drafts + i].
// Rows past counts[b] hold kPadToken and -inf.
struct DraftBatch {
  std::size_t num_slots = 0;
  std::vector<TokenId> token_ids;
  std::vector<float> scores;
  std::vector<std::int32_t> counts;
};

// The lattices of a (batch, slots, top_k) array of candidates.
std::vector<Sausage> BuildSausages(const TokenId* token_ids, const float* scores, std::size_t batch,
                                   std::size_t num_slots, std::size_t top_k);

// FindDrafts for each lattice, which must all have the same number of slots. Throws ValueError
// where they don't, or where contexts and lattices differ in number.
DraftBatch FindDraftBatch(const std::vector<Sausage>& sausages, const BackoffLm* lm,
                          const ContextsView& contexts, const DraftOptions& options);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_DRAFT_BATCH_H_
