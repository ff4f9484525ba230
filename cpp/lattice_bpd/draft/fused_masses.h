// Step 2 of the fused search for trees: of every row ln of the mass of all its completions, the sum
// of the exponentials of its lanes' values (fused_completions.h).
//
// A row differs from its suffix's in its hits alone, so it needs exponentials of these and of its
// backoff, no more: masses of rows are kept as they are, divided by that of the best lane of the
// boundary's root. Where this leaves the range of numbers, a row's mass is summed by itself: so a
// lane that has vanished in a row, or become infinite, never counts in one that is longer.
#ifndef LATTICE_BPD_DRAFT_FUSED_MASSES_H_
#define LATTICE_BPD_DRAFT_FUSED_MASSES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/fused_completions.h"
#include "lattice_bpd/draft/fused_exponentials.h"

namespace lattice_bpd {
namespace {

template <typename Simd>
class MassFinder {
 public:
  // Without completions: masses of candidates by their own scores.
  MassFinder(const FusedTask& task, FusedWorkspace* workspace, bool with_completions = true)
      : task_(task),
        w_(*workspace),
        values_(task, workspace),
        with_completions_(with_completions) {}

  void Run() {
    w_.worth.Resize(w_.rows.size);
    w_.value_row.Resize(w_.rows.size);
    w_.hit_masses.Resize(w_.hits.size + kFusedSpare);
    TakeBackoffs();
    TakeTransitions();
    for (std::uint32_t j = task_.num_slots; j-- > 0;) {
      for (std::uint32_t length = 0; length <= task_.max_length; ++length) TakeHits(length, j);
      std::uint32_t rows = 0;  // of the boundary so far
      for (std::uint32_t length = 0; length <= task_.max_length; ++length) {
        rows = FillRows(length, j, rows);
      }
      TakeSums(rows);
      rows = 0;
      for (std::uint32_t length = 0; length <= task_.max_length; ++length) {
        rows = FindWorth(length, j, rows);
      }
    }
  }

 private:
  // A mass below 2^-1021 is 0. Factors that are not above 2^50 make up to 2^-671 of it in seven
  // rows, each the suffix of the next: nothing beside a sum above 2^-400.
  static constexpr double kMostFactor = 0x1p50, kLeast = 0x1p-400, kMost = 0x1p900;

  std::uint32_t RowBegin(std::uint32_t length, std::uint32_t j) const {
    return values_.RowBegin(length, j);
  }

  // Of all rows: what multiplies the masses of their suffixes.
  void TakeBackoffs() {
    const std::uint32_t size = w_.rows.size;
    w_.factors.Resize(size + kFusedSpare);
    std::copy_n(w_.rows.backoff.data(), size, w_.factors.data());
    std::fill_n(w_.factors.data() + size, kFusedSpare, 0.0);
    TakeExponentials(w_.factors.data(), size, 0.0, w_.factors.data());
    for (std::uint32_t r = 0; r < size; ++r) {
      w_.factors[r] = w_.factors[r] > kMostFactor ? NAN : w_.factors[r];
    }
  }

  void TakeTransitions() {
    if (!task_.has_transitions) return;
    const std::size_t size = w_.transitions.size();
    w_.transition_factors.Resize(size);
    for (std::size_t i = 0; i < size; i += task_.stride) {
      TakeExponentials(w_.transitions.data() + i, task_.stride, 0.0,
                       w_.transition_factors.data() + i);
    }
  }

  // What is written after the last hit is for the next boundary, which is done.
  void TakeHits(std::uint32_t length, std::uint32_t j) {
    const std::uint32_t begin = w_.rows.hits_begin[RowBegin(length, j)];
    const std::uint32_t end = w_.rows.hits_begin[RowBegin(length, j + 1)];
    if (with_completions_ && j + 1 < task_.num_slots) values_.AddCompletions(begin, end);
    const double* scores = w_.hits.score.data();
    if (length == 0) {
      const double best = *std::max_element(scores + begin, scores + end);
      base_ = std::isfinite(best) ? best : 0.0;
    }
    TakeExponentials(scores + begin, end - begin, base_, w_.hit_masses.data() + begin);
  }

  // After `rows` rows of the boundary; returns how many there are then.
  std::uint32_t FillRows(std::uint32_t length, std::uint32_t j, std::uint32_t rows) {
    const std::uint32_t begin = RowBegin(length, j), end = RowBegin(length, j + 1);
    const std::size_t needed = std::size_t{rows} + end - begin;
    w_.masses.Resize(std::max(w_.masses.size(), needed * task_.stride));
    w_.sums.Resize(std::max(w_.sums.size(), needed + kFusedSpare));
    for (std::uint32_t r = begin; r < end; ++r) {
      w_.value_row[r] = rows;
      w_.sums[rows++] = FillMasses(r);
    }
    return rows;
  }

  // Returns their sum.
  double FillMasses(std::uint32_t r) {
    const std::uint32_t suffix = w_.rows.suffix[r];
    double* masses = Masses(r);
    const double* suffix_masses = Masses(suffix);
    if (suffix == r) {
      std::fill_n(masses, task_.stride, 0.0);
    } else if (task_.IsSharedRoot(suffix)) {
      const double* factors =
          w_.transition_factors.data() + task_.Transitions(suffix, w_.last_lane[r]);
      for (std::uint32_t i = 0; i < task_.stride; ++i) masses[i] = suffix_masses[i] * factors[i];
      suffix_masses = masses;
    }
    return Simd::FillMasses(suffix_masses, w_.factors[r], values_.HitsOf(r, w_.hit_masses.data()),
                            task_.stride, masses);
  }

  // ln of the sums of the boundary's rows; of those that cannot be believed NaN.
  void TakeSums(std::uint32_t rows) {
    for (std::uint32_t i = 0; i < rows; i += kFusedLanes) {
      double logs[kFusedLanes];
      std::copy_n(w_.sums.data() + i, kFusedLanes, logs);
      TakeLogs(logs);
      for (std::uint32_t k = 0; k < kFusedLanes; ++k) {
        const double sum = w_.sums[i + k];
        w_.sums[i + k] = sum > kLeast && sum < kMost ? logs[k] : NAN;
      }
    }
  }

  // On the grid: never below the largest value, which is on the grid too.
  std::uint32_t FindWorth(std::uint32_t length, std::uint32_t j, std::uint32_t rows) {
    const std::uint32_t begin = RowBegin(length, j), end = RowBegin(length, j + 1);
    for (std::uint32_t r = begin; r < end; ++r) {
      const double log = w_.sums[rows++];
      w_.worth[r] = std::isnan(log) ? WorthAlone(r) : ToScoreGrid(base_ + log);
    }
    return rows;
  }

  // By the row's own best lane.
  double WorthAlone(std::uint32_t r) {
    const double* values = values_.Of(r);
    const double best = *std::max_element(values, values + task_.stride);
    if (!std::isfinite(best)) return best;
    w_.alone.Resize(task_.stride);
    TakeExponentials(values, task_.stride, best, w_.alone.data());
    double logs[kFusedLanes];
    std::fill_n(logs, kFusedLanes, Sum(w_.alone.data(), task_.stride));
    TakeLogs(logs);
    return ToScoreGrid(best + logs[0]);
  }

  double* Masses(std::uint32_t r) {
    return w_.masses.data() + std::size_t{w_.value_row[r]} * task_.stride;
  }

  const FusedTask& task_;
  FusedWorkspace& w_;
  RowValues<Simd> values_;
  const bool with_completions_;
  double base_ = 0.0;  // value of the best lane of the boundary's root
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_MASSES_H_
