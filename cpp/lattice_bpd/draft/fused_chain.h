// The last step of the fused search for one chain: of all paths the one of which a path sampled
// from P is expected to begin with the most tokens (find_chain.h).
//
// With q(w | row) = mass of the lane / mass of the row, the greatest expected accept length after a
// row is
//
//   V(row) = max over w of q(w | row) (1 + V(next row))
//
// and fused_masses.h has found it. The chain takes the best lane of each row, by
//
//   value(row, w) + gain(next row)                      gain = ln(1 + V)
//
// Gains are rounded to the score grid, so that equal expected lengths are equal. Without gains, and
// with local normalization, the same walk is greedy.
#ifndef LATTICE_BPD_DRAFT_FUSED_CHAIN_H_
#define LATTICE_BPD_DRAFT_FUSED_CHAIN_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_completions.h"
#include "lattice_bpd/draft/fused_hits.h"

namespace lattice_bpd {
namespace {

// The best lane of each row on the way; of equal ones the first.
template <typename Simd>
void WriteChain(const FusedTask& task, bool is_walk, FusedWorkspace* w,
                std::vector<TreeNode>* out) {
  RowValues<Simd> values_of(task, w);
  out->clear();
  out->reserve(task.num_slots);
  std::uint32_t r = w->hits.target[0];
  double log_prob = 0.0;
  for (std::uint32_t j = 0; j < task.num_slots; ++j) {
    const double* values = is_walk ? values_of.Of(r) : values_of.WithGains(r, j);
    const double* best = std::max_element(values, values + task.Width(j));
    if (!std::isfinite(*best)) return;  // no path continues
    const auto lane = static_cast<std::uint32_t>(best - values);
    const bool longer = j + 1 < task.num_slots;
    const std::uint32_t next = longer ? TargetOf(task, *w, r, lane) : 0;
    log_prob += *best - (longer && !is_walk ? w->gains[next] : 0.0) - w->worth[r];
    const Symbol symbol = w->symbols[task.Lane(j, lane)];
    const auto depth = static_cast<std::int32_t>(j);
    out->push_back({static_cast<TokenId>(symbol), depth - 1, depth, log_prob});
    r = next;
  }
}

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_CHAIN_H_
