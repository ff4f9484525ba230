#include "lattice_bpd/draft/draft_batch.h"

#include <algorithm>
#include <limits>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

void CheckBatch(const std::vector<Sausage>& sausages, const ContextsView& contexts) {
  if (contexts.offsets.size() != sausages.size() + 1) {
    throw ValueError(StrCat("contexts: ", contexts.offsets.size(), " offsets for ", sausages.size(),
                            " lattices; expected one more than lattices"));
  }
  for (std::size_t b = 0; b < sausages.size(); ++b) {
    const std::int64_t begin = contexts.offsets[b];
    const std::int64_t end = contexts.offsets[b + 1];
    if (begin < 0 || end < begin || static_cast<std::size_t>(end) > contexts.token_ids.size()) {
      throw ValueError(StrCat("contexts: offsets ", begin, "..", end, " of row ", b,
                              " do not fit the ", contexts.token_ids.size(), " token ids"));
    }
    if (sausages[b].num_slots() != sausages[0].num_slots()) {
      throw ValueError(StrCat("lattice ", b, " has ", sausages[b].num_slots(), " slots, lattice 0 ",
                              sausages[0].num_slots(),
                              "; rescore lattices of one length at a "
                              "time"));
    }
  }
}

}  // namespace

std::vector<Sausage> BuildSausages(const TokenId* token_ids, const float* scores, std::size_t batch,
                                   std::size_t num_slots, std::size_t top_k) {
  std::vector<Sausage> sausages(batch);
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t slot = 0; slot < num_slots; ++slot) {
      const std::size_t at = (b * num_slots + slot) * top_k;
      sausages[b].AddSlot({token_ids + at, top_k}, {scores + at, top_k});
    }
  }
  return sausages;
}

DraftBatch FindDraftBatch(const std::vector<Sausage>& sausages, const BackoffLm* lm,
                          const ContextsView& contexts, const DraftOptions& options) {
  CheckBatch(sausages, contexts);
  DraftBatch out;
  if (sausages.empty()) return out;
  out.num_slots = sausages[0].num_slots();
  const std::size_t rows = sausages.size() * static_cast<std::size_t>(options.num_drafts);
  for (std::size_t b = 0; b < sausages.size(); ++b) {
    const Span<TokenId> context =
        contexts.token_ids.Slice(static_cast<std::size_t>(contexts.offsets[b]),
                                 static_cast<std::size_t>(contexts.offsets[b + 1]));
    const LmState start = lm == nullptr ? LmState{} : lm->StateOfContext(context, contexts.bos);
    const DraftList drafts = FindDrafts(sausages[b], lm, start, options);
    if (b == 0) {  // after FindDrafts has checked num_drafts
      out.token_ids.assign(rows * out.num_slots, kPadToken);
      out.scores.assign(rows, -std::numeric_limits<float>::infinity());
    }
    const std::size_t row = b * static_cast<std::size_t>(options.num_drafts);
    std::copy(drafts.token_ids.begin(), drafts.token_ids.end(),
              out.token_ids.begin() + static_cast<std::ptrdiff_t>(row * out.num_slots));
    std::copy(drafts.scores.begin(), drafts.scores.end(),
              out.scores.begin() + static_cast<std::ptrdiff_t>(row));
    out.counts.push_back(static_cast<std::int32_t>(drafts.size()));
  }
  return out;
}

}  // namespace lattice_bpd
