#include "lattice_bpd/draft/draft_batch.h"

#include <algorithm>
#include <limits>

namespace lattice_bpd {

DraftBatch FindDraftBatch(const LatticeBatch& lattices, const BackoffLm* lm,
                          const ContextsView& contexts, const DraftOptions& options, int threads) {
  CheckNumDrafts(options.num_drafts);
  const auto num_drafts = static_cast<std::size_t>(options.num_drafts);
  DraftBatch out;
  out.num_slots = lattices.num_slots();
  out.token_ids.assign(lattices.size() * num_drafts * out.num_slots, kPadToken);
  out.scores.assign(lattices.size() * num_drafts, -std::numeric_limits<float>::infinity());
  out.counts.resize(lattices.size());
  ForEachLattice(lattices, lm, contexts, threads,
                 [&](std::size_t b, const Sausage& lattice, const LmState& start,
                     const CachedContext& cached) {
                   const DraftList drafts = FindDrafts(lattice, lm, start, options, cached);
                   const std::size_t row = b * num_drafts;
                   std::copy(drafts.token_ids.begin(), drafts.token_ids.end(),
                             out.token_ids.data() + row * out.num_slots);
                   std::copy(drafts.scores.begin(), drafts.scores.end(), out.scores.data() + row);
                   out.counts[b] = static_cast<std::int32_t>(drafts.size());
                 });
  return out;
}

}  // namespace lattice_bpd
