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
#include <cstring>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/fused_completions.h"
#include "lattice_bpd/draft/fused_exponentials.h"

namespace lattice_bpd {
namespace {

// With kForChains (fused_chain.h) the same pass finds V, the greatest expected accept lengths. The
// weighted mass of a lane is its mass times 1 + V of the row after it. Weighted masses obey the
// same recursion, and V of a row is the largest of them, divided by the sum of its masses.
template <typename Simd, bool kForChains = false>
class MassFinder {
 public:
  // Without completions: masses of candidates by their own scores.
  MassFinder(const FusedTask& task, FusedWorkspace* workspace, bool with_completions = true)
      : task_(task),
        w_(*workspace),
        values_(task, workspace),
        with_completions_(with_completions),
        width_(kForChains ? 2 * task.stride : task.stride) {}

  void Run() {
    w_.worth.Resize(w_.rows.size);
    w_.value_row.Resize(w_.rows.size);
    w_.hit_masses.Resize(w_.hits.size + kFusedSpare);
    if (kForChains) ResizeForChains();
    TakeBackoffs();
    TakeTransitions();
    for (std::uint32_t j = task_.num_slots; j-- > 0;) {
      for (std::uint32_t length = 0; length <= task_.max_length; ++length) TakeHits(length, j);
      const std::uint32_t rows = FillBoundary(j);
      const bool is_sound = TakeSums(rows);
      KeepSums(j);
      if (!is_sound) SumAlone(j);
    }
  }

 private:
  // A mass below 2^-1021 is 0. Factors that are not above 2^50 make up to 2^-671 of it in seven
  // rows, each the suffix of the next: nothing beside a sum above 2^-400.
  static constexpr double kMostFactor = 0x1p50, kLeast = 0x1p-400, kMost = 0x1p900;

  std::uint32_t RowBegin(std::uint32_t length, std::uint32_t j) const {
    return values_.RowBegin(length, j);
  }

  void ResizeForChains() {
    w_.hit_weighted.Resize(w_.hits.size + kFusedSpare);
    w_.lengths.Resize(w_.rows.size);
    w_.gains.Resize(w_.rows.size);
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
    const bool is_last = j + 1 == task_.num_slots;
    if (with_completions_ && !is_last) values_.AddCompletions(begin, end);
    const double* scores = w_.hits.score.data();
    if (length == 0) {
      const double best = *std::max_element(scores + begin, scores + end);
      base_ = std::isfinite(best) ? best : 0.0;
    }
    double* masses = w_.hit_masses.data() + begin;
    TakeExponentials(scores + begin, end - begin, base_, masses);
    if (!kForChains) return;
    if (is_last) {
      std::copy_n(masses, end - begin, w_.hit_weighted.data() + begin);
    } else {
      Simd::MultiplyGathered(masses, w_.lengths.data(), w_.hits.target.data() + begin, end - begin,
                             w_.hit_weighted.data() + begin);
    }
  }

  // Masses of a boundary's rows, and their sums; returns how many rows there are.
  std::uint32_t FillBoundary(std::uint32_t j) {
    std::uint32_t rows = 0;
    for (std::uint32_t length = 0; length <= task_.max_length; ++length) {
      rows += RowBegin(length, j + 1) - RowBegin(length, j);
    }
    w_.masses.Resize(std::max(w_.masses.size(), std::size_t{rows} * width_));
    for (Buffer<double>* of_rows : {&w_.sums, &w_.bests, &w_.logs}) {
      of_rows->Resize(std::max(of_rows->size(), std::size_t{rows} + kFusedSpare));
    }
    rows = 0;
    for (std::uint32_t length = 0; length <= task_.max_length; ++length) {
      const std::uint32_t begin = RowBegin(length, j), end = RowBegin(length, j + 1);
      FillRows(begin, end, rows);
      rows += end - begin;
    }
    return rows;
  }

  // `at`: which row of the boundary the first one is.
  void FillRows(std::uint32_t begin, std::uint32_t end, std::uint32_t at) {
    const FusedHitIndex index = values_.HitIndex();
    const std::uint32_t* suffixes = w_.rows.suffix.data();
    const double* factors = w_.factors.data();
    const double* hit_masses = w_.hit_masses.data();
    const double* hit_weighted = w_.hit_weighted.data();
    double* masses = w_.masses.data() + std::size_t{at} * width_;
    double *sums = w_.sums.data() + at, *bests = w_.bests.data() + at;
    std::uint32_t* value_row = w_.value_row.data();
    const std::uint32_t stride = task_.stride, width = width_;
    for (std::uint32_t r = begin; r < end; ++r, masses += width) {
      value_row[r] = at++;
      const std::uint32_t suffix = suffixes[r];
      const double* before = suffix == r || task_.IsSharedRoot(suffix)
                                 ? MassesBefore(r, suffix, masses)
                                 : w_.masses.data() + std::size_t{value_row[suffix]} * width;
      const FusedRowHits hits = index.Of(r, hit_masses);
      if (kForChains) {
        const FusedMassTotals totals = Simd::FillMassPairs(
            before, factors[r], hits, hit_weighted + index.hits_begin[r], stride, masses);
        *sums++ = totals.sum;
        *bests++ = totals.best;
      } else {
        *sums++ = Simd::FillMasses(before, factors[r], hits, stride, masses);
      }
    }
  }

  // Where a row's masses do not follow from its suffix's by its factor and hits alone.
  const double* MassesBefore(std::uint32_t r, std::uint32_t suffix, double* masses) {
    if (suffix == r) {
      std::fill_n(masses, width_, 0.0);
      return masses;
    }
    const double* factors =
        w_.transition_factors.data() + task_.Transitions(suffix, w_.last_lane[r]);
    const double* of_suffix = w_.masses.data() + std::size_t{w_.value_row[suffix]} * width_;
    for (std::uint32_t first = 0; first < width_; first += task_.stride) {
      for (std::uint32_t i = 0; i < task_.stride; ++i) {
        masses[first + i] = of_suffix[first + i] * factors[i];
      }
    }
    return masses;
  }

  // The sums of the boundary's rows become ln of them on the grid, never below the largest value,
  // which is on the grid too; those that cannot be believed NaN. Returns whether none is. `bests`
  // become 1 + V.
  bool TakeSums(std::uint32_t rows) {
    double *sums = w_.sums.data(), *bests = w_.bests.data(), *gains = w_.logs.data();
    std::fill_n(sums + rows, kFusedSpare, 1.0);
    std::fill_n(bests + rows, kFusedSpare, 0.0);
    Integers is_sound = ~Integers{};
    for (std::uint32_t i = 0; i < rows; i += kFusedLanes) {
      Doubles sum, best;
      CopyBits(sums + i, &sum);
      CopyBits(bests + i, &best);
      const auto in_range = (sum > kLeast) & (sum < kMost);
      Doubles log = sum;
      TakeLogs(&log);
      log += base_;
      RoundToScoreGrid(&log);
      log = in_range ? log : NAN - Doubles{};
      std::memcpy(sums + i, &log, sizeof log);
      is_sound &= (Integers)in_range;
      if (!kForChains) continue;
      best = 1.0 + best / sum;
      std::memcpy(bests + i, &best, sizeof best);
      TakeLogs(&best);
      RoundToScoreGrid(&best);
      std::memcpy(gains + i, &best, sizeof best);
    }
    bool all = true;
    for (std::uint32_t k = 0; k < kFusedLanes; ++k) all &= is_sound[k] != 0;
    return all;
  }

  // From the rows of the boundary to all rows.
  void KeepSums(std::uint32_t j) {
    std::uint32_t at = 0;
    for (std::uint32_t length = 0; length <= task_.max_length; ++length) {
      const std::uint32_t begin = RowBegin(length, j), size = RowBegin(length, j + 1) - begin;
      std::copy_n(w_.sums.data() + at, size, w_.worth.data() + begin);
      if (kForChains) {
        std::copy_n(w_.bests.data() + at, size, w_.lengths.data() + begin);
        std::copy_n(w_.logs.data() + at, size, w_.gains.data() + begin);
      }
      at += size;
    }
  }

  // Rows whose sums cannot be believed, each by its own best lane.
  void SumAlone(std::uint32_t j) {
    for (std::uint32_t length = 0; length <= task_.max_length; ++length) {
      const std::uint32_t end = RowBegin(length, j + 1);
      for (std::uint32_t r = RowBegin(length, j); r < end; ++r) {
        if (!std::isnan(w_.worth[r])) continue;
        w_.worth[r] = WorthAlone(r);
        if (kForChains) FindLengthAlone(r, j);
      }
    }
  }

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

  void FindLengthAlone(std::uint32_t r, std::uint32_t j) {
    const double* values = values_.WithGains(r, j);
    const double best = *std::max_element(values, values + task_.stride);
    double length[kFusedLanes];
    std::fill_n(length, kFusedLanes, std::isfinite(best) ? best - w_.worth[r] : kMinusInfinity);
    TakeExponentials(length, kFusedLanes, 0.0, length);
    for (double& one : length) one += 1.0;
    w_.lengths[r] = length[0];
    TakeLogs(length);
    w_.gains[r] = ToScoreGrid(length[0]);
  }

  const FusedTask& task_;
  FusedWorkspace& w_;
  RowValues<Simd> values_;
  const bool with_completions_;
  const std::uint32_t width_;  // of a row in `masses`
  double base_ = 0.0;          // value of the best lane of the boundary's root
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_MASSES_H_
