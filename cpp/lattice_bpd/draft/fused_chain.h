// The last steps of the fused search for one chain: of all paths the one of which a path sampled
// from P is expected to begin with the most tokens (find_chain.h).
//
// With masses known (fused_masses.h), q(w | row) = exp(value(row, w) - worth(row)), and the
// greatest expected accept length after a row is
//
//   V(row) = max over w of q(w | row) (1 + V(next row))
//          = exp(max over w of [value(row, w) + gain(next row)] - worth(row))   gain = ln(1 + V)
//
// The bracket of a lane without a hit is that of the suffix plus the backoff, as value itself is:
// so it is step 2 of the search for lists (fused_completions.h) with a gain for each hit. Gains are
// rounded to the score grid, so that equal expected lengths are equal. Without gains, and with
// local normalization, the same walk is greedy.
#ifndef LATTICE_BPD_DRAFT_FUSED_CHAIN_H_
#define LATTICE_BPD_DRAFT_FUSED_CHAIN_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_completions.h"
#include "lattice_bpd/draft/fused_exponentials.h"
#include "lattice_bpd/draft/fused_hits.h"

namespace lattice_bpd {
namespace {

template <typename Simd>
class ChainFinder {
 public:
  ChainFinder(const FusedTask& task, FusedWorkspace* workspace)
      : task_(task), w_(*workspace), values_(task, workspace) {}

  // Backward: gains of all rows; scores of hits then include the next row's.
  void Run() {
    w_.gains.Resize(w_.rows.size);
    w_.value_row.Resize(w_.rows.size);
    for (std::uint32_t j = task_.num_slots; j-- > 0;) {
      std::uint32_t rows = 0;  // of the boundary so far
      for (std::uint32_t length = 0; length <= task_.max_length; ++length) {
        const std::uint32_t begin = values_.RowBegin(length, j);
        const std::uint32_t end = values_.RowBegin(length, j + 1);
        if (begin == end) continue;
        if (j + 1 < task_.num_slots) {
          AddGains(w_.rows.hits_begin[begin], w_.rows.hits_begin[end]);
        }
        for (std::uint32_t r = begin; r < end; ++r) FillRow(r, rows++);
      }
      FindGains(j, rows);
    }
  }

  // Instead: the greedy walk counts nothing beyond the next candidate.
  void SkipGains() {
    w_.gains.Resize(w_.rows.size);
    std::fill_n(w_.gains.data(), w_.rows.size, 0.0);
  }

  // Forward: the best lane of each row on the way; of equal ones the first.
  void WriteNodes(std::vector<TreeNode>* out) {
    out->clear();
    std::uint32_t r = w_.hits.target[0];
    double log_prob = 0.0;
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) {
      const double* values = values_.Of(r);
      const double* best = std::max_element(values, values + task_.Width(j));
      if (!std::isfinite(*best)) return;  // no path continues
      const auto lane = static_cast<std::uint32_t>(best - values);
      const bool longer = j + 1 < task_.num_slots;
      const std::uint32_t next = longer ? TargetOf(task_, w_, r, lane) : 0;
      log_prob += *best - (longer ? w_.gains[next] : 0.0) - w_.worth[r];
      const Symbol symbol = w_.symbols[task_.Lane(j, lane)];
      const auto depth = static_cast<std::int32_t>(j);
      out->push_back({static_cast<TokenId>(symbol), depth - 1, depth, log_prob});
      r = next;
    }
  }

 private:
  void AddGains(std::uint32_t hits_begin, std::uint32_t hits_end) {
    const std::uint32_t* targets = w_.hits.target.data();
    const double* gains = w_.gains.data();
    double* scores = w_.hits.score.data();
    for (std::uint32_t h = hits_begin; h < hits_end; ++h) scores[h] += gains[targets[h]];
  }

  // `at`: which row of `values` is this one's.
  void FillRow(std::uint32_t r, std::uint32_t at) {
    w_.value_row[r] = at;
    w_.values.Resize(std::max(w_.values.size(), std::size_t{at + 1} * task_.stride));
    w_.sums.Resize(std::max(w_.sums.size(), std::size_t{at + 1} + kFusedSpare));
    const double best = values_.Fill(r, Values(w_.rows.suffix[r]), Values(r));
    w_.sums[at] = std::isfinite(best) ? best - w_.worth[r] : kMinusInfinity;
  }

  // ln(1 + V) of a boundary's rows; so far w_.sums has ln V.
  void FindGains(std::uint32_t j, std::uint32_t rows) {
    double* gains = w_.sums.data();
    std::fill_n(gains + rows, kFusedSpare, 0.0);
    TakeExponentials(gains, rows, 0.0, gains);
    for (std::uint32_t i = 0; i < rows; i += kFusedLanes) {
      for (std::uint32_t k = 0; k < kFusedLanes; ++k) gains[i + k] += 1.0;
      TakeLogs(gains + i);
    }
    for (std::uint32_t length = 0; length <= task_.max_length; ++length) {
      const std::uint32_t end = values_.RowBegin(length, j + 1);
      for (std::uint32_t r = values_.RowBegin(length, j); r < end; ++r) {
        w_.gains[r] = ToScoreGrid(w_.sums[w_.value_row[r]]);
      }
    }
  }

  double* Values(std::uint32_t r) {
    return w_.values.data() + std::size_t{w_.value_row[r]} * task_.stride;
  }

  const FusedTask& task_;
  FusedWorkspace& w_;
  RowValues<Simd> values_;
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_CHAIN_H_
