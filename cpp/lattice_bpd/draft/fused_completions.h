// Step 2 of the fused search (fused_search.h): what every row is worth, by dynamic programming over
// rows x lanes: for lists of drafts the score of its best completion. fused_masses.h has the same
// for trees.
#ifndef LATTICE_BPD_DRAFT_FUSED_COMPLETIONS_H_
#define LATTICE_BPD_DRAFT_FUSED_COMPLETIONS_H_

#include "lattice_bpd/draft/fused_runs.h"
#include "lattice_bpd/draft/fused_task.h"

namespace lattice_bpd {
namespace {

// The values of a row: the score, up to the end of the lattice, of each lane.
template <typename Simd>
class RowValues {
 public:
  RowValues(const FusedTask& task, FusedWorkspace* workspace) : task_(task), w_(*workspace) {}

  // Scores of hits so far end with the hit itself.
  void AddCompletions(std::uint32_t hits_begin, std::uint32_t hits_end) {
    Simd::AddGathered(w_.hits.constant.data() + hits_begin, w_.worth.data(),
                      w_.hits.target.data() + hits_begin, hits_end - hits_begin,
                      w_.hits.score.data() + hits_begin);
  }

  // The suffix's plus the backoff, and a hit's own of `scores` in its place. A hit replaces the
  // backed-off score, better or worse. Returns the best.
  double Fill(std::uint32_t r, const double* scores, const double* suffix_values, double* values) {
    const std::uint32_t suffix = w_.rows.suffix[r];
    if (suffix == r) {
      std::fill(values, values + task_.stride, kMinusInfinity);
    } else if (task_.IsSharedRoot(suffix)) {
      const double* transitions =
          w_.transitions.data() + task_.Transitions(suffix, w_.last_lane[r]);
      for (std::uint32_t i = 0; i < task_.stride; ++i) {
        values[i] = suffix_values[i] + transitions[i];
      }
      suffix_values = values;
    }
    return Simd::FillRow(suffix_values, w_.rows.backoff[r], HitIndex().Of(r, scores), task_.stride,
                         values);
  }

  FusedHitIndex HitIndex() const {
    return {w_.rows.lane_bits.data(), w_.hits.lane.data(), w_.rows.hits_begin.data(),
            task_.lane_words};
  }

  // The rows of `length` symbols at boundary j are RowBegin(length, j) .. RowBegin(length, j + 1).
  std::uint32_t RowBegin(std::uint32_t length, std::uint32_t j) const {
    return w_.row_begin[std::size_t{length} * task_.num_slots + j];
  }

  // By those of its suffixes. Good until the next call.
  const double* Of(std::uint32_t r) { return Of(r, w_.hits.score.data()); }

  // The same with the gain of the next row in each value; `r` is a row of boundary j.
  const double* WithGains(std::uint32_t r, std::uint32_t j) {
    if (j + 1 == task_.num_slots) return Of(r);
    w_.gained.Resize(w_.hits.size + kFusedSpare);
    AddGains(r);
    for (std::uint32_t row = r; w_.rows.suffix[row] != row;) AddGains(row = w_.rows.suffix[row]);
    return Of(r, w_.gained.data());
  }

 private:
  static constexpr std::size_t kMaxChain = kMaxOrder + 1;  // a row of a lane, of n-grams, a root

  void AddGains(std::uint32_t r) {
    for (std::uint32_t h = w_.rows.hits_begin[r]; h < w_.rows.hits_begin[r + 1]; ++h) {
      w_.gained[h] = w_.hits.score[h] + w_.gains[w_.hits.target[h]];
    }
  }

  const double* Of(std::uint32_t r, const double* scores) {
    w_.chain.Resize(kMaxChain * task_.stride);
    return Recompute(r, scores);
  }

  double* Recompute(std::uint32_t r, const double* scores) {
    const std::uint32_t suffix = w_.rows.suffix[r];
    double* suffix_values = suffix == r ? w_.chain.data() : Recompute(suffix, scores);
    double* values = suffix_values + (suffix == r ? 0 : task_.stride);
    Fill(r, scores, suffix_values, values);
    return values;
  }

  const FusedTask& task_;
  FusedWorkspace& w_;
};

template <typename Simd>
class CompletionFinder {
 public:
  CompletionFinder(const FusedTask& task, FusedWorkspace* workspace)
      : task_(task), w_(*workspace), values_(task, workspace) {}

  // Where all values fit, they are kept for the beam; else those of one boundary overwrite those
  // of another.
  void Run() {
    const std::size_t num_rows = w_.rows.size;
    kept_ = num_rows * task_.stride <= kKeptValues;
    w_.worth.Resize(num_rows);
    w_.values.Resize(kept_ ? num_rows * task_.stride : 0);
    if (!kept_) w_.value_row.Resize(num_rows);
    for (std::uint32_t j = task_.num_slots; j-- > 0;) {
      std::uint32_t next_row = 0;
      for (std::uint32_t length = 0; length <= task_.max_length; ++length) {
        FillRows(j, values_.RowBegin(length, j), values_.RowBegin(length, j + 1), &next_row);
      }
    }
  }

  const double* ValuesOf(std::uint32_t r) { return kept_ ? Values(r) : values_.Of(r); }

 private:
  static constexpr std::size_t kKeptValues = std::size_t{1} << 20;

  void FillRows(std::uint32_t j, std::uint32_t begin, std::uint32_t end, std::uint32_t* next_row) {
    if (begin == end) return;
    if (j + 1 < task_.num_slots) {
      values_.AddCompletions(w_.rows.hits_begin[begin], w_.rows.hits_begin[end]);
    }
    for (std::uint32_t r = begin; r < end; ++r) {
      if (!kept_) {
        w_.value_row[r] = (*next_row)++;
        w_.values.Resize(std::max(w_.values.size(), std::size_t{*next_row} * task_.stride));
      }
      w_.worth[r] = values_.Fill(r, w_.hits.score.data(), Values(w_.rows.suffix[r]), Values(r));
    }
  }

  double* Values(std::uint32_t r) {
    return w_.values.data() + std::size_t{kept_ ? r : w_.value_row[r]} * task_.stride;
  }

  const FusedTask& task_;
  FusedWorkspace& w_;
  RowValues<Simd> values_;
  bool kept_ = false;
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_COMPLETIONS_H_
