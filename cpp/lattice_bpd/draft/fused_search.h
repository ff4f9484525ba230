// The fused search itself, compiled once for each instruction set (fused_scalar.cc, fused_avx2.cc,
// fused_avx512.cc). `Simd` has the few operations that differ; fused_scalar.cc says what each must
// do. docs/search.md has the proof; names are the same there.
//
// Everything is in an anonymous namespace on purpose: each translation unit must keep its own
// copy, or the linker could hand AVX-512 code to the scalar build.
#ifndef LATTICE_BPD_DRAFT_FUSED_SEARCH_H_
#define LATTICE_BPD_DRAFT_FUSED_SEARCH_H_

#include <algorithm>
#include <functional>
#include <limits>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/fused_workspace.h"

namespace lattice_bpd {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

template <typename Simd>
class FusedSearch {
 public:
  FusedSearch(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
              const DraftOptions& options, FusedWorkspace* workspace)
      : sausage_(sausage),
        lm_(lm),
        start_(start),
        alpha_(options.alpha),
        num_drafts_(static_cast<std::uint32_t>(options.num_drafts)),
        num_slots_(static_cast<std::uint32_t>(sausage.num_slots())),
        max_length_(lm == nullptr ? 0 : static_cast<std::uint32_t>(lm->order()) - 1),
        w_(*workspace) {}

  void Run(DraftList* out) {
    LoadCandidates();
    FindHits();
    FindBestCompletions();
    SearchBeam();
    WriteDrafts(out);
  }

 private:
  static constexpr std::size_t kKeptValues = std::size_t{1} << 20;
  static constexpr std::uint32_t kRankLimit = 64;

  // --- candidates ---------------------------------------------------------------------------

  // Lanes by rising token id, so that whatever walks them in order walks drafts in tie order.
  void LoadCandidates() {
    stride_ = 0;
    for (std::uint32_t j = 0; j < num_slots_; ++j) stride_ = std::max(stride_, Width(j));
    stride_ = (stride_ + kFusedLanes - 1) / kFusedLanes * kFusedLanes;
    w_.symbols.Resize(std::size_t{num_slots_} * stride_);
    w_.head_scores.Resize(std::size_t{num_slots_} * stride_);
    w_.order.Resize(stride_);
    const bool masked = sausage_.all_masked();
    for (std::uint32_t j = 0; j < num_slots_; ++j) {
      const TokenId* ids = sausage_.token_ids(j).data();
      const float* scores = sausage_.scores(j).data();
      const std::uint32_t width = Width(j);
      OrderByTokenId(ids, width);
      std::uint32_t* symbols = w_.symbols.data() + Lane(j, 0);
      double* heads = w_.head_scores.data() + Lane(j, 0);
      for (std::uint32_t i = 0; i < width; ++i) {
        symbols[w_.order[i]] = static_cast<Symbol>(ids[i]);
        heads[w_.order[i]] = masked ? 0.0 : ToScoreGrid(scores[i]);
      }
      std::fill(heads + width, heads + stride_, kMinusInfinity);
    }
  }

  // order[i] = the lane of candidate i. Few candidates: each one's rank, which vectorises.
  void OrderByTokenId(const TokenId* ids, std::uint32_t width) {
    if (width <= kRankLimit) {
      for (std::uint32_t i = 0; i < width; ++i) {
        std::uint32_t rank = 0;
        for (std::uint32_t k = 0; k < width; ++k) rank += ids[k] < ids[i];
        w_.order[i] = rank;
      }
      return;
    }
    w_.sorted.Resize(width);
    for (std::uint32_t i = 0; i < width; ++i) {
      w_.sorted[i] = (static_cast<std::uint64_t>(ids[i]) << 32) | i;
    }
    std::sort(w_.sorted.begin(), w_.sorted.end());
    for (std::uint32_t lane = 0; lane < width; ++lane) {
      w_.order[static_cast<std::uint32_t>(w_.sorted[lane])] = lane;
    }
  }

  std::uint32_t Width(std::uint32_t slot) const {
    return static_cast<std::uint32_t>(sausage_.width(slot));
  }
  std::size_t Lane(std::uint32_t slot, std::uint32_t lane) const {
    return std::size_t{slot} * stride_ + lane;
  }
  double Scaled(float natural_log) const {
    return ToScoreGrid(alpha_ * static_cast<double>(natural_log));
  }

  // --- 1. hits ------------------------------------------------------------------------------

  // Boundary j lies before slot j. Its rows stand by rising length, the root (empty history) first.
  void FindHits() {
    w_.hits.Clear();
    w_.rows.Clear();
    w_.hit_lanes.Clear();
    w_.row_begin.Clear();
    w_.row_begin.Append(0);
    AddRoot(0);
    StartRows();
    w_.targets.Clear();
    for (std::uint32_t j = 0; j + 1 < num_slots_; ++j) {
      w_.row_begin.Append(static_cast<std::uint32_t>(w_.rows.size()));
      AddRoot(j + 1);
      w_.targets.Resize(w_.hits.size());
      ExtendRows(j);
    }
    w_.row_begin.Append(static_cast<std::uint32_t>(w_.rows.size()));
  }

  // The root's hits are all candidates: every symbol has a unigram.
  void AddRoot(std::uint32_t slot) {
    const auto begin = static_cast<std::uint32_t>(w_.hits.size());
    const std::uint32_t width = Width(slot);
    w_.hits.Resize(begin + width);
    for (std::uint32_t lane = 0; lane < width; ++lane) {
      const Symbol symbol = w_.symbols[Lane(slot, lane)];
      w_.hits[begin + lane] = {lane, symbol, 0};
      if (lm_ != nullptr) Simd::Prefetch(lm_->levels()[0].Record(symbol));
    }
    PushRow(begin, static_cast<std::uint32_t>(w_.rows.size()), 0, 0.0);
  }

  // Boundary 0: the suffixes of the context.
  void StartRows() {
    start_row_ = 0;
    start_constant_ = 0.0;
    std::uint32_t length = 0;
    for (; length < start_.length; ++length) {
      const std::uint32_t node = start_.nodes[length];
      const auto [begin, end] = lm_->Children(length + 1, node);
      if (!AddRow(0, length + 1, node, {begin, end}, start_row_)) break;
      start_row_ = static_cast<std::uint32_t>(w_.rows.size()) - 1;
    }
    for (; length < start_.length; ++length) {  // no hits here, so none in anything longer
      start_constant_ += Scaled(lm_->levels()[length].Backoff(start_.nodes[length]));
    }
  }

  // From the hits of boundary j to the rows of boundary j + 1, a length at a time: a history can
  // have hits only where its suffix has, and only on the same lanes.
  void ExtendRows(std::uint32_t j) {
    const std::uint32_t rows_end = w_.row_begin[j + 1];
    std::uint32_t row = w_.row_begin[j];
    while (row < rows_end) {
      const std::uint32_t length = w_.rows[row].length;
      const std::uint32_t hits_begin = w_.rows[row].hits_begin;
      while (row < rows_end && w_.rows[row].length == length) ++row;
      const std::uint32_t hits_end = w_.rows[row - 1].hits_end;
      if (length < max_length_) {
        LoadRuns(length, hits_begin, hits_end);
        for (std::uint32_t h = hits_begin; h < hits_end; ++h) {
          w_.targets[h] = ExtendHit(j, length, w_.hits[h], w_.runs[h - hits_begin]);
        }
      } else {  // n-grams of the highest order are nobody's history
        for (std::uint32_t h = hits_begin; h < hits_end; ++h) {
          w_.targets[h] = SuffixTarget(j, length, w_.hits[h]);
          w_.targets[h].own_row = false;
        }
      }
    }
  }

  FusedTarget SuffixTarget(std::uint32_t j, std::uint32_t length, const FusedHit& hit) const {
    return length == 0 ? FusedTarget{w_.row_begin[j + 1], true, 0.0} : w_.targets[hit.suffix_hit];
  }

  // Where the children of each hit stand; asks for their keys ahead of use.
  void LoadRuns(std::uint32_t length, std::uint32_t hits_begin, std::uint32_t hits_end) {
    const PackedLevel& next = lm_->levels()[length + 1];
    w_.runs.Resize(hits_end - hits_begin);
    for (std::uint32_t h = hits_begin; h < hits_end; ++h) {
      FusedRun& run = w_.runs[h - hits_begin];
      run = {0, 0};
      if (length > 0 && !w_.targets[w_.hits[h].suffix_hit].own_row) continue;
      const auto [begin, end] = lm_->Children(length + 1, w_.hits[h].node);
      run = {begin, end};
      if (end - begin > 2 * kSampleStride) {
        Simd::Prefetch(next.samples.data() +
                       std::size_t{begin / kSampleStride} * next.form.key_bytes);
      } else {
        Simd::Prefetch(next.keys.data() + std::size_t{begin} * next.form.key_bytes);
      }
    }
  }

  FusedTarget ExtendHit(std::uint32_t j, std::uint32_t length, const FusedHit hit, FusedRun run) {
    FusedTarget target = SuffixTarget(j, length, hit);
    if (run.begin < run.end && AddRow(j + 1, length + 1, hit.node, run, target.row)) {
      return {static_cast<std::uint32_t>(w_.rows.size()) - 1, true, 0.0};
    }
    target.own_row = false;
    target.constant += Scaled(lm_->levels()[length].Backoff(hit.node));
    return target;
  }

  // Searches the children of a history of `length` symbols for the candidates that its suffix's
  // row hit. Adds a row if there are any.
  bool AddRow(std::uint32_t slot, std::uint32_t length, std::uint32_t node, FusedRun run,
              std::uint32_t suffix_row) {
    const PackedLevel& level = lm_->levels()[length];
    const auto hits_begin = static_cast<std::uint32_t>(w_.hits.size());
    const std::uint32_t first = w_.rows[suffix_row].hits_begin;
    const std::uint32_t last = w_.rows[suffix_row].hits_end;
    w_.hits.Reserve(hits_begin + (last - first) + 1);
    const std::uint32_t count =
        Simd::FindHits(level, run, w_.symbols.data() + Lane(slot, 0), w_.hits.data(), first, last,
                       w_.hits.data() + hits_begin);
    if (count == 0) return false;
    w_.hits.Resize(hits_begin + count);
    for (std::uint32_t h = hits_begin; h < hits_begin + count; ++h) {
      Simd::Prefetch(level.Record(w_.hits[h].node));
    }
    PushRow(hits_begin, suffix_row, length, Scaled(lm_->levels()[length - 1].Backoff(node)));
    return true;
  }

  // A row of the hits from hits_begin on.
  void PushRow(std::uint32_t hits_begin, std::uint32_t suffix, std::uint32_t length,
               double backoff) {
    const auto hits_end = static_cast<std::uint32_t>(w_.hits.size());
    w_.rows.Append({hits_begin, hits_end, suffix, length, backoff, 0.0});
    const std::size_t bytes = stride_ / kFusedLanes;
    const std::size_t at = w_.hit_lanes.size();
    w_.hit_lanes.Resize(at + bytes);
    std::uint8_t* lanes = w_.hit_lanes.data() + at;
    std::fill(lanes, lanes + bytes, std::uint8_t{0});
    for (std::uint32_t h = hits_begin; h < hits_end; ++h) {
      const std::uint32_t lane = w_.hits[h].lane;
      lanes[lane / kFusedLanes] |= static_cast<std::uint8_t>(1u << (lane % kFusedLanes));
    }
  }

  // --- 2. best completions ------------------------------------------------------------------

  // Where all values fit, they are kept for the beam; else each boundary's overwrite the last's.
  void FindBestCompletions() {
    kept_ = w_.rows.size() * stride_ <= kKeptValues;
    std::size_t most = 0;
    for (std::uint32_t j = 0; j < num_slots_; ++j) {
      most = std::max<std::size_t>(most, w_.row_begin[j + 1] - w_.row_begin[j]);
    }
    w_.values.Resize((kept_ ? w_.rows.size() : most) * stride_);
    for (std::uint32_t j = num_slots_; j-- > 0;) {
      const std::uint32_t base = kept_ ? 0 : w_.row_begin[j];
      for (std::uint32_t r = w_.row_begin[j]; r < w_.row_begin[j + 1]; ++r) {
        FusedRow& row = w_.rows[r];
        row.best = FillRow(j, r, w_.values.data() + std::size_t{row.suffix - base} * stride_,
                           w_.values.data() + std::size_t{r - base} * stride_);
      }
    }
  }

  // The score, up to the end of the lattice, of each lane from a row: the suffix's plus the
  // backoff, and a hit's own in its place. A hit replaces the backed-off score, better or worse.
  // Returns the best.
  double FillRow(std::uint32_t j, std::uint32_t r, const double* suffix_values, double* values) {
    const FusedRow& row = w_.rows[r];
    double best = kMinusInfinity;
    if (row.length > 0) {
      const std::uint8_t* hit_lanes = w_.hit_lanes.data() + std::size_t{r} * stride_ / kFusedLanes;
      best = Simd::AddConstant(suffix_values, row.backoff, hit_lanes, stride_, values);
    } else {
      std::fill(values + Width(j), values + stride_, kMinusInfinity);
    }
    const bool last = j + 1 == num_slots_;
    const double* heads = w_.head_scores.data() + Lane(j, 0);
    const PackedLevel* level = lm_ == nullptr ? nullptr : &lm_->levels()[row.length];
    for (std::uint32_t h = row.hits_begin; h < row.hits_end; ++h) {
      const FusedHit& hit = w_.hits[h];
      double score = heads[hit.lane];
      if (level != nullptr) score += Scaled(level->LogProb(hit.node));
      if (!last) score += w_.targets[h].constant + w_.rows[w_.targets[h].row].best;
      values[hit.lane] = score;
      best = std::max(best, score);
    }
    return best;
  }

  // --- 3. the beam --------------------------------------------------------------------------

  // Prefixes stand in tie order (by token ids) throughout, so that of equals the first ones win.
  void SearchBeam() {
    w_.beam.Clear();
    w_.beam.Append({start_row_, 0, 0, start_constant_ + w_.rows[start_row_].best});
    beam_begin_ = 0;
    for (std::uint32_t j = 0; j < num_slots_; ++j) {
      const auto beam_end = static_cast<std::uint32_t>(w_.beam.size());
      ExtendBeam(j, beam_end);
      KeepBest();
      beam_begin_ = beam_end;
      for (const FusedPrefix& prefix : w_.found) {
        w_.beam.Append(
            {TargetOf(j, prefix.row, prefix.lane), prefix.parent, prefix.lane, prefix.score});
      }
    }
  }

  // The next slot's prefixes, with their parents' rows still.
  void ExtendBeam(std::uint32_t j, std::uint32_t beam_end) {
    // Each prefix has a best completion, so p prefixes promise p paths at least as good as this.
    double least = kMinusInfinity;
    if (beam_end - beam_begin_ == num_drafts_) {
      least = w_.beam[beam_begin_].score;
      for (std::uint32_t b = beam_begin_; b < beam_end; ++b) {
        least = std::min(least, w_.beam[b].score);
      }
    }
    w_.found.Clear();
    for (std::uint32_t b = beam_begin_; b < beam_end; ++b) {
      const FusedPrefix& prefix = w_.beam[b];
      const double* values = ValuesOf(j, prefix.row);
      const double shift = prefix.score - w_.rows[prefix.row].best;
      Simd::ForEachAtLeast(values, Width(j), least - shift, [&](std::uint32_t lane) {
        w_.found.Append({prefix.row, b, lane, values[lane] + shift});
      });
    }
  }

  // The row after a candidate: that of the longest history with a hit for it.
  std::uint32_t TargetOf(std::uint32_t j, std::uint32_t r, std::uint32_t lane) const {
    if (j + 1 == num_slots_) return 0;
    const std::size_t bytes = stride_ / kFusedLanes;
    while ((w_.hit_lanes[r * bytes + lane / kFusedLanes] >> (lane % kFusedLanes) & 1) == 0) {
      r = w_.rows[r].suffix;
    }
    std::uint32_t h = w_.rows[r].hits_begin;
    while (w_.hits[h].lane != lane) ++h;
    return w_.targets[h].row;
  }

  const double* ValuesOf(std::uint32_t j, std::uint32_t r) {
    if (kept_) return w_.values.data() + std::size_t{r} * stride_;
    w_.chain.Resize(std::size_t{kMaxOrder} * stride_);
    return Recompute(j, r);
  }

  // A row's values from those of its suffixes; buffer `length` holds the row of that length.
  const double* Recompute(std::uint32_t j, std::uint32_t r) {
    const FusedRow& row = w_.rows[r];
    double* values = w_.chain.data() + std::size_t{row.length} * stride_;
    FillRow(j, r, row.length == 0 ? values : Recompute(j, row.suffix), values);
    return values;
  }

  // The p best of w_.found, in the order they stand in.
  void KeepBest() {
    if (w_.found.size() <= num_drafts_) return;
    w_.scores.Clear();
    for (const FusedPrefix& prefix : w_.found) w_.scores.Append(prefix.score);
    double* nth = w_.scores.begin() + num_drafts_ - 1;
    std::nth_element(w_.scores.begin(), nth, w_.scores.end(), std::greater<double>());
    const double worst = *nth;
    std::uint32_t ties = num_drafts_;
    for (const FusedPrefix& prefix : w_.found) ties -= prefix.score > worst;
    std::size_t kept = 0;
    for (const FusedPrefix& prefix : w_.found) {
      const bool tie = prefix.score == worst && ties > 0;
      if (prefix.score <= worst && !tie) continue;
      ties -= tie;
      w_.found[kept++] = prefix;
    }
    w_.found.Resize(kept);
  }

  void WriteDrafts(DraftList* out) {
    const std::size_t count = w_.beam.size() - beam_begin_;
    w_.order.Resize(count);
    for (std::uint32_t i = 0; i < count; ++i) w_.order[i] = beam_begin_ + i;
    std::sort(w_.order.begin(), w_.order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return w_.beam[a].score > w_.beam[b].score || (w_.beam[a].score == w_.beam[b].score && a < b);
    });
    out->num_slots = num_slots_;
    out->token_ids.resize(count * num_slots_);
    out->scores.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t b = w_.order[i];
      out->scores[i] = w_.beam[b].score;
      for (std::uint32_t j = num_slots_; j-- > 0; b = w_.beam[b].parent) {
        out->token_ids[i * num_slots_ + j] =
            static_cast<TokenId>(w_.symbols[Lane(j, w_.beam[b].lane)]);
      }
    }
  }

  const Sausage& sausage_;
  const BackoffLm* lm_;
  const LmState& start_;
  const double alpha_;
  const std::uint32_t num_drafts_;
  const std::uint32_t num_slots_;
  const std::uint32_t max_length_;  // order - 1
  FusedWorkspace& w_;

  std::uint32_t stride_ = 0;  // lanes of a slot, padded
  std::uint32_t start_row_ = 0;
  double start_constant_ = 0.0;
  std::uint32_t beam_begin_ = 0;
  bool kept_ = false;
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_SEARCH_H_
