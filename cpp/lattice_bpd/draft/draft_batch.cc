#include "lattice_bpd/draft/draft_batch.h"

#include <algorithm>
#include <limits>

namespace lattice_bpd {

void FindDraftBatch(const LatticeBatch& lattices, const BackoffLm* lm, const ContextsView& contexts,
                    const DraftOptions& options, int threads, const DraftRows& out) {
  CheckNumDrafts(options.num_drafts);
  const auto num_drafts = static_cast<std::size_t>(options.num_drafts);
  const std::size_t num_slots = lattices.num_slots();
  const auto find = [&](std::size_t b, const Sausage& lattice, const LmState& start) {
    thread_local DraftList drafts;
    FindDrafts(lattice, lm, start, options, &drafts);
    TokenId* const token_ids = out.token_ids + b * num_drafts * num_slots;
    float* const scores = out.scores + b * num_drafts;
    std::fill_n(token_ids, num_drafts * num_slots, kPadToken);
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      std::copy_n(drafts.token_ids.data() + i * drafts.num_slots, drafts.num_slots,
                  token_ids + i * num_slots);
    }
    std::fill(std::copy(drafts.scores.begin(), drafts.scores.end(), scores), scores + num_drafts,
              -std::numeric_limits<float>::infinity());
    out.counts[b] = static_cast<std::int32_t>(drafts.size());
  };
  ForEachLattice(lattices, lm, contexts, threads, find);
}

DraftBatch FindDraftBatch(const LatticeBatch& lattices, const BackoffLm* lm,
                          const ContextsView& contexts, const DraftOptions& options, int threads) {
  CheckNumDrafts(options.num_drafts);
  const auto num_drafts = static_cast<std::size_t>(options.num_drafts);
  DraftBatch out;
  out.num_slots = lattices.num_slots();
  out.token_ids.resize(lattices.size() * num_drafts * out.num_slots);
  out.scores.resize(lattices.size() * num_drafts);
  out.counts.resize(lattices.size());
  FindDraftBatch(lattices, lm, contexts, options, threads,
                 {out.token_ids.data(), out.scores.data(), out.counts.data()});
  return out;
}

}  // namespace lattice_bpd
