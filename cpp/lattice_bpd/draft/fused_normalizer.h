// Between steps 1 and 2 of the fused search: local normalization (find_drafts.h).
//
// Z(row), ln of the sum over candidates of exp(score), needs no completions: it is a mass
// (fused_masses.h) without them. Rows and hits are then changed so that their scores are ln q:
//
//   score(hit) - Z(row)      backoff(row) + Z(suffix) - Z(row)      no constants
//
// Constants go because a history without hits has its suffix's q: what it pays for all candidates
// alike cancels. Whatever follows remains as it is; the masses of completions are all 1.
#ifndef LATTICE_BPD_DRAFT_FUSED_NORMALIZER_H_
#define LATTICE_BPD_DRAFT_FUSED_NORMALIZER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lattice_bpd/draft/fused_masses.h"
#include "lattice_bpd/draft/fused_task.h"

namespace lattice_bpd {
namespace {

template <typename Simd, bool kForChains>
void NormalizeRows(const FusedTask& task, FusedWorkspace* w) {
  MassFinder<Simd, kForChains>(task, w, /*with_completions=*/false).Run();
  double* sums = w->worth.data();
  for (std::uint32_t r = 0; r < w->rows.size; ++r) {
    // Lane rows are normalized, not the root that they share; and nothing where nothing is
    // possible.
    if (task.IsSharedRoot(r) || !std::isfinite(sums[r])) sums[r] = 0.0;
  }
  for (std::uint32_t r = 0; r < w->rows.size; ++r) {
    w->rows.backoff[r] += sums[w->rows.suffix[r]] - sums[r];
    for (std::uint32_t h = w->rows.hits_begin[r]; h < w->rows.hits_begin[r + 1]; ++h) {
      w->hits.score[h] -= sums[r];
    }
  }
  std::fill_n(w->hits.constant.data(), w->hits.size, 0.0);
  std::fill_n(sums, w->rows.size, 0.0);
}

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_NORMALIZER_H_
