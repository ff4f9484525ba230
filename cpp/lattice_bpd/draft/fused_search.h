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
    lane_words_ = (stride_ + 63) / 64;
    w_.symbols.Resize(std::size_t{num_slots_} * stride_);
    w_.symbols16.Resize(std::size_t{num_slots_} * stride_ + kFusedSpare);
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
      std::fill(symbols + width, symbols + stride_, kNoSymbol);
      std::uint16_t* symbols16 = w_.symbols16.data() + Lane(j, 0);
      for (std::uint32_t lane = 0; lane < stride_; ++lane) {
        symbols16[lane] = static_cast<std::uint16_t>(symbols[lane]);
      }
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

  // Boundary j lies before slot j. Rows stand by length, within a length by boundary: all rows of
  // one length are found in one pass over all boundaries, since they depend on shorter ones only.
  // So there is always other work to do while memory answers.
  void FindHits() {
    w_.hits.size = 0;
    w_.rows.Clear();
    w_.hit_lanes.Clear();
    w_.row_begin.Clear();
    w_.targets.Clear();
    start_row_ = 0;
    start_constant_ = 0.0;
    for (std::uint32_t j = 0; j < num_slots_; ++j) {
      w_.row_begin.Append(static_cast<std::uint32_t>(w_.rows.size()));
      AddRoot(j);
    }
    for (std::uint32_t length = 1; length <= max_length_; ++length) FindRows(length);
    w_.row_begin.Append(static_cast<std::uint32_t>(w_.rows.size()));
    PassOnTargets();
  }

  // The rows of `length` symbols at boundary j are RowBegin(length, j) .. RowBegin(length, j + 1).
  std::uint32_t RowBegin(std::uint32_t length, std::uint32_t j) const {
    return w_.row_begin[std::size_t{length} * num_slots_ + j];
  }

  // The root row (of the empty history). Its hits are all candidates: every symbol has a unigram.
  void AddRoot(std::uint32_t j) {
    const std::uint32_t begin = w_.hits.size;
    const std::uint32_t width = Width(j);
    w_.hits.Reserve(width);
    std::uint64_t* lane_bits = NewLaneBits();
    for (std::uint32_t lane = 0; lane < width; ++lane) {
      w_.hits.lane[begin + lane] = lane;
      w_.hits.node[begin + lane] = lm_ == nullptr ? 0 : w_.symbols[Lane(j, lane)];
      lane_bits[lane / 64] |= std::uint64_t{1} << (lane % 64);
      if (lm_ != nullptr) Simd::Prefetch(lm_->levels()[0].Record(w_.hits.node[begin + lane]));
    }
    w_.hits.size += width;
    w_.rows.Append(
        {begin, w_.hits.size, static_cast<std::uint32_t>(w_.rows.size()), 0, 0, 0.0, 0.0});
  }

  // All rows of one length: from the context, then from the hits of rows one symbol shorter.
  void FindRows(std::uint32_t length) {
    const std::uint32_t first = RowBegin(length - 1, 0);
    const auto hits_end = static_cast<std::uint32_t>(w_.hits.size);
    const std::uint32_t hits_begin = first < w_.rows.size() ? w_.rows[first].hits_begin : hits_end;
    w_.targets.Resize(hits_end);
    LoadRuns(length, hits_begin, hits_end);
    const PackedLevel shorter = lm_->levels()[length - 1];
    w_.row_begin.Append(static_cast<std::uint32_t>(w_.rows.size()));
    StartRow(length);
    for (std::uint32_t j = 0; j + 1 < num_slots_; ++j) {
      w_.row_begin.Append(static_cast<std::uint32_t>(w_.rows.size()));
      for (std::uint32_t r = RowBegin(length - 1, j); r < RowBegin(length - 1, j + 1); ++r) {
        ExtendRow(j, r, w_.runs.data() + (w_.rows[r].hits_begin - hits_begin), shorter);
      }
    }
  }

  // Boundary 0: the suffix of the context of this length. Where it has no hits, no longer one has.
  void StartRow(std::uint32_t length) {
    if (length > start_.length) return;
    const std::uint32_t node = start_.nodes[length - 1];
    const double backoff = Scaled(lm_->levels()[length - 1].Backoff(node));
    const auto [begin, end] = lm_->Children(length, node);
    if (w_.rows[start_row_].length + 1 == length &&
        AddRow(0, length, {begin, end}, start_row_, backoff)) {
      start_row_ = static_cast<std::uint32_t>(w_.rows.size()) - 1;
    } else {
      start_constant_ += backoff;
    }
  }

  // Where the children of each hit stand; asks for their keys ahead of use.
  void LoadRuns(std::uint32_t length, std::uint32_t hits_begin, std::uint32_t hits_end) {
    const PackedLevel shorter = lm_->levels()[length - 1];  // a copy, so that it stays in registers
    const PackedLevel& level = lm_->levels()[length];
    const std::uint8_t* keys = level.keys.data();
    const std::uint8_t* samples = level.samples.data();
    const std::uint8_t* records = level.payload.data();
    const std::size_t key_bytes = level.form.key_bytes;
    const std::size_t record_bytes = level.form.record_bytes();
    w_.runs.Resize(hits_end - hits_begin);
    const std::uint32_t* nodes = w_.hits.node.data() + hits_begin;
    FusedRun* runs = w_.runs.data();
    for (std::uint32_t i = 0; i < hits_end - hits_begin; ++i) {
      const auto [begin, end] = shorter.Children(nodes[i]);
      runs[i] = {begin, end};
      const bool is_long = end - begin > 2 * kSampleStride;
      Simd::Prefetch(is_long ? samples + begin / kSampleStride * key_bytes
                             : keys + begin * key_bytes);
      Simd::Prefetch(records + begin * record_bytes);  // a short run's records are few
    }
  }

  // From the hits of a row at boundary j to rows at boundary j + 1, one symbol longer. A history
  // can have hits only where its suffix has, and only on the same lanes.
  void ExtendRow(std::uint32_t j, std::uint32_t r, const FusedRun* runs, const PackedLevel& level) {
    const FusedRow row = w_.rows[r];
    for (std::uint32_t h = row.hits_begin; h < row.hits_end; ++h, ++runs) {
      FusedTarget target = SuffixTarget(j, row.length, h);
      const double backoff = Scaled(level.Backoff(w_.hits.node[h]));
      bool added = false;
      if (target.own_row) added = AddRow(j + 1, row.length + 1, *runs, target.row, backoff);
      target.row = added ? static_cast<std::uint32_t>(w_.rows.size()) - 1 : target.row;
      target.constant = added ? 0.0 : target.constant + backoff;
      target.own_row = added;
      w_.targets[h] = target;
    }
  }

  // Where the suffix of a hit leads; the suffix of a unigram is the empty history, the root.
  FusedTarget SuffixTarget(std::uint32_t j, std::uint32_t length, std::uint32_t h) const {
    return length == 0 ? FusedTarget{RowBegin(0, j + 1), true, 0.0}
                       : w_.targets[w_.hits.suffix_hit[h]];
  }

  // N-grams of the highest order are nobody's history: they lead where their suffixes do.
  void PassOnTargets() {
    w_.targets.Resize(w_.hits.size);
    for (std::uint32_t j = 0; j + 1 < num_slots_; ++j) {
      for (std::uint32_t r = RowBegin(max_length_, j); r < RowBegin(max_length_, j + 1); ++r) {
        for (std::uint32_t h = w_.rows[r].hits_begin; h < w_.rows[r].hits_end; ++h) {
          w_.targets[h] = SuffixTarget(j, w_.rows[r].length, h);
        }
      }
    }
  }

  // Searches the children of a history of `length` symbols for the candidates that its suffix's
  // row hit. Adds a row if there are any. (What is written for a row without hits stays beyond
  // the end: whether there are any is a coin toss, and a wrong guess costs more than the writes.)
  bool AddRow(std::uint32_t slot, std::uint32_t length, FusedRun run, std::uint32_t suffix_row,
              double backoff) {
    const PackedLevel& level = lm_->levels()[length];
    const std::uint32_t hits_begin = w_.hits.size;
    const std::uint32_t first = w_.rows[suffix_row].hits_begin;
    const std::uint32_t num_hits = w_.rows[suffix_row].hits_end - first;
    w_.hits.Reserve(num_hits + kFusedSpare);
    std::uint64_t* lane_bits = NewLaneBits();
    const FusedQuery query = {w_.symbols.data() + Lane(slot, 0),
                              w_.symbols16.data() + Lane(slot, 0),
                              stride_,
                              w_.hit_lanes.data() + std::size_t{suffix_row} * lane_words_,
                              w_.hits.lane.data() + first,
                              num_hits,
                              first};
    const std::uint32_t count =
        Simd::FindHits(level, run, query,
                       {w_.hits.lane.data() + hits_begin, w_.hits.node.data() + hits_begin,
                        w_.hits.suffix_hit.data() + hits_begin, lane_bits});
    w_.hits.size = hits_begin + count;
    w_.rows.Append({hits_begin, hits_begin + count, suffix_row, length, 0, backoff, 0.0});
    w_.rows.Resize(w_.rows.size() - (count == 0));
    w_.hit_lanes.Resize(w_.rows.size() * lane_words_);
    return count != 0;
  }

  // The bits of the row that comes next, none set.
  std::uint64_t* NewLaneBits() {
    const std::size_t at = w_.rows.size() * lane_words_;
    w_.hit_lanes.Resize(at + lane_words_);
    std::uint64_t* bits = w_.hit_lanes.data() + at;
    for (std::uint32_t i = 0; i < lane_words_; ++i) bits[i] = 0;
    return bits;
  }

  // --- 2. best completions ------------------------------------------------------------------

  // Where all values fit, they are kept for the beam; else those of one boundary overwrite those
  // of another.
  void FindBestCompletions() {
    kept_ = w_.rows.size() * stride_ <= kKeptValues;
    if (kept_) w_.values.Resize(w_.rows.size() * stride_);
    for (std::uint32_t j = num_slots_; j-- > 0;) {
      std::uint32_t place = 0;
      for (std::uint32_t length = 0; length <= max_length_; ++length) {
        const std::uint32_t at = length * num_slots_ + j;
        const PackedLevel level = lm_ == nullptr ? PackedLevel{} : lm_->levels()[length];
        for (std::uint32_t r = w_.row_begin[at]; r < w_.row_begin[at + 1]; ++r, ++place) {
          FusedRow& row = w_.rows[r];
          row.place = kept_ ? r : place;
          w_.values.Resize(std::max(w_.values.size(), (row.place + std::size_t{1}) * stride_));
          row.best = FillRow(j, r, level, Values(w_.rows[row.suffix]), Values(row));
        }
      }
    }
  }

  double* Values(const FusedRow& row) {
    return w_.values.data() + std::size_t{row.place} * stride_;
  }

  // The score, up to the end of the lattice, of each lane from a row: the suffix's plus the
  // backoff, and a hit's own in its place. A hit replaces the backed-off score, better or worse.
  // Returns the best.
  double FillRow(std::uint32_t j, std::uint32_t r, const PackedLevel& level,
                 const double* suffix_values, double* values) {
    const FusedRow& row = w_.rows[r];
    double best = kMinusInfinity;
    if (row.length > 0) {
      const std::uint64_t* hit_lanes = w_.hit_lanes.data() + std::size_t{r} * lane_words_;
      best = Simd::AddConstant(suffix_values, row.backoff, hit_lanes, stride_, values);
    } else {
      std::fill(values + Width(j), values + stride_, kMinusInfinity);
    }
    const bool last = j + 1 == num_slots_;
    const double* heads = w_.head_scores.data() + Lane(j, 0);
    const std::uint32_t* lanes = w_.hits.lane.data();
    const std::uint32_t* nodes = w_.hits.node.data();
    const FusedTarget* targets = w_.targets.data();
    const FusedRow* rows = w_.rows.data();
    const std::uint32_t hits_end = row.hits_end;
    for (std::uint32_t h = row.hits_begin; h < hits_end; ++h) {
      double score = heads[lanes[h]];
      if (lm_ != nullptr) score += Scaled(level.LogProb(nodes[h]));
      if (!last) score += targets[h].constant + rows[targets[h].row].best;
      values[lanes[h]] = score;
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
    while ((w_.hit_lanes[std::size_t{r} * lane_words_ + lane / 64] >> (lane % 64) & 1) == 0) {
      r = w_.rows[r].suffix;
    }
    std::uint32_t h = w_.rows[r].hits_begin;
    while (w_.hits.lane[h] != lane) ++h;
    return w_.targets[h].row;
  }

  const double* ValuesOf(std::uint32_t j, std::uint32_t r) {
    if (kept_) return Values(w_.rows[r]);
    w_.chain.Resize(std::size_t{kMaxOrder} * stride_);
    return Recompute(j, r);
  }

  // A row's values from those of its suffixes; buffer `length` holds the row of that length.
  const double* Recompute(std::uint32_t j, std::uint32_t r) {
    const FusedRow& row = w_.rows[r];
    double* values = w_.chain.data() + std::size_t{row.length} * stride_;
    const PackedLevel level = lm_ == nullptr ? PackedLevel{} : lm_->levels()[row.length];
    FillRow(j, r, level, row.length == 0 ? values : Recompute(j, row.suffix), values);
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

  std::uint32_t stride_ = 0;      // lanes of a slot, padded
  std::uint32_t lane_words_ = 0;  // 64-bit words that have a bit for each lane
  std::uint32_t start_row_ = 0;
  double start_constant_ = 0.0;
  std::uint32_t beam_begin_ = 0;
  bool kept_ = false;
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_SEARCH_H_
