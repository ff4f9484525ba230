// What a cache adds between steps 1 and 2 of the fused search: mixed rows and hits, laid over those
// of the static LM that HitFinder found. docs/search.md, "With an n-gram cache", has the proof;
// names are the same there.
//
// As all fused_*.h that compute, in an anonymous namespace (see fused_search.h).
#ifndef LATTICE_BPD_DRAFT_FUSED_CACHE_H_
#define LATTICE_BPD_DRAFT_FUSED_CACHE_H_

#include <algorithm>
#include <cmath>

#include "lattice_bpd/draft/fused_mixed_rows.h"
#include "lattice_bpd/draft/fused_task.h"
#include "lattice_bpd/draft/fused_text.h"
#include "lattice_bpd/draft/fused_workspace.h"

namespace lattice_bpd {
namespace {

// Goes from boundary to boundary, within a boundary by increasing length of histories: a history's
// mixture follows from that of its suffix. Mixed rows come after all others, by boundary, as if
// they were one length more.
class CacheMixer {
 public:
  // With a cache and one slot or more.
  CacheMixer(FusedTask* task, FusedWorkspace* workspace)
      : task_(*task),
        w_(*workspace),
        o_(workspace->overlay),
        cache_(*task->cached.cache),
        text_(*task, workspace),
        rows_(*task, text_, workspace),
        static_length_(task->max_length) {}

  void Run() {
    if (task_.lm == nullptr) AddUniform();
    if (!cache_.IsActive(task_.lm != nullptr) || !text_.Run()) return;
    Begin();
    MixContext();
    for (std::uint32_t j = 0; j + 1 < task_.num_slots; ++j) {
      w_.row_begin.Append(w_.rows.size);
      MixSlot(j);
    }
    w_.row_begin.Append(w_.rows.size);
    task_.max_length = static_length_ + 1;
  }

 private:
  static constexpr std::uint32_t kNoMixture = 0;

  // As HitFinder's.
  std::uint32_t RowBegin(std::uint32_t length, std::uint32_t j) const {
    return w_.row_begin[std::size_t{length} * task_.num_slots + j];
  }
  std::uint32_t HitsBegin(std::uint32_t length, std::uint32_t j) const {
    return w_.rows.hits_begin[RowBegin(length, j)];
  }

  // Without a static LM: the roots' hits get alpha * ln(1 / vocab_size).
  void AddUniform() {
    const double scaled = task_.Scaled(-std::log(static_cast<double>(cache_.vocab_size())));
    for (std::uint32_t h = 1; h < w_.rows.hits_begin[task_.num_slots]; ++h) {
      w_.hits.score[h] += scaled;
    }
  }

  void Begin() {
    const std::uint32_t num_roots = w_.rows.hits_begin[task_.num_slots];
    rows_.Reserve();
    std::fill(o_.cache_node.data() + num_roots, o_.cache_node.data() + w_.hits.size, kNoNode);
    o_.mixtures.Clear();
    o_.mixtures.Append({1.0, 0.0, kNoNode});
  }

  // The suffixes of the context; hit 0 leads to the longest.
  void MixContext() {
    const ContextState& state = task_.cached.state;
    std::uint32_t row = 0;
    double constant = 0.0;
    w_.hits.target[0] = row;
    w_.hits.constant[0] = constant;
    o_.mixture[0] = kNoMixture;
    for (std::uint32_t length = 1; length <= std::max(task_.start.length, state.length); ++length) {
      FusedHistory history = {length, 0, 0, kNoNode, kNoNode, kNoNode};
      if (length <= task_.start.length) {
        history.node = task_.start.nodes[length - 1];
        constant += task_.Scaled(task_.lm->levels()[length - 1].Backoff(history.node));
        const std::uint32_t own = RowBegin(length, 0);
        if (own < RowBegin(length, 1)) {
          history.static_row = row = own;
          constant = 0.0;
        }
        w_.hits.target[0] = row;
        w_.hits.constant[0] = constant + o_.mixtures[o_.mixture[0]].scaled_kept;
      } else {
        LeaveMixedRow(0);
      }
      if (length <= state.length) history.cache_node = state.nodes[length - 1];
      MixHistory(history, o_.mixture[0]);
    }
  }

  // The histories at the boundary after slot j.
  void MixSlot(std::uint32_t j) {
    const std::uint32_t mixed_rows = RowBegin(static_length_ + 1, j);
    const std::uint32_t mixed_end = w_.rows.size;
    MixUnigrams(j);
    for (std::uint32_t length = 1; length < static_length_; ++length) MixNgrams(length, j);
    if (static_length_ > 0) MixLongest(j);
    for (std::uint32_t r = mixed_rows; r < mixed_end; ++r) MixMixed(r, j);
  }

  void MixUnigrams(std::uint32_t j) {
    const std::uint32_t end = HitsBegin(0, j + 1);
    for (std::uint32_t h = HitsBegin(0, j); h < end; ++h) {
      o_.mixture[h] = kNoMixture;
      if (o_.cache_node[h] != kNoNode) MixHistory(HistoryOf(1, j, h), kNoMixture);
    }
  }

  // The hits of the static LM after rows of so many tokens. Those with more to do than an addition
  // are listed first: a branch on each would be unpredictable.
  void MixNgrams(std::uint32_t length, std::uint32_t j) {
    const std::uint32_t begin = HitsBegin(length, j);
    const std::uint32_t end = HitsBegin(length, j + 1);
    o_.listed.Resize(end - begin + 1);
    std::uint32_t* listed = o_.listed.data();
    const FusedMixture* mixtures = o_.mixtures.data();
    for (std::uint32_t h = begin; h < end; ++h) {
      const std::uint32_t of_suffix = o_.mixture[w_.hits.suffix_hit[h]];
      o_.mixture[h] = of_suffix;
      w_.hits.constant[h] += mixtures[of_suffix].scaled_kept;
      *listed = h;
      listed += (mixtures[of_suffix].row & o_.cache_node[h]) != kNoNode;  // one or both
    }
    for (const std::uint32_t* h = o_.listed.data(); h != listed; ++h) {
      MixHistory(HistoryOf(length + 1, j, *h), o_.mixture[*h]);
    }
  }

  // N-grams of the LM's order make no history that it knows.
  void MixLongest(std::uint32_t j) {
    const std::uint32_t end = HitsBegin(static_length_, j + 1);
    for (std::uint32_t h = HitsBegin(static_length_, j); h < end; ++h) {
      LeadTo(h, w_.hits.suffix_hit[h]);
      MixCached(static_length_ + 1, j, h);
    }
  }

  // Hits of a mixed row.
  void MixMixed(std::uint32_t r, std::uint32_t j) {
    const std::uint32_t end = w_.rows.hits_begin[r + 1];
    for (std::uint32_t h = w_.rows.hits_begin[r]; h < end; ++h) {
      const std::uint32_t static_hit = w_.hits.node[h];
      LeadTo(h, static_hit != kNoHit ? static_hit : w_.hits.suffix_hit[h]);
      if (static_hit == kNoHit) MixCached(o_.length[r] + 1, j, h);
    }
  }

  // Where another hit leads.
  void LeadTo(std::uint32_t h, std::uint32_t same) {
    w_.hits.target[h] = w_.hits.target[same];
    w_.hits.constant[h] = w_.hits.constant[same];
    o_.mixture[h] = o_.mixture[same];
  }

  // A history that only the text may have, and leads as its suffix.
  void MixCached(std::uint32_t length, std::uint32_t j, std::uint32_t h) {
    if (o_.cache_node[h] == kNoNode) return;
    LeaveMixedRow(h);
    MixHistory({length, j + 1, h, kNoNode, kNoNode, o_.cache_node[h]}, o_.mixture[h]);
  }

  // A hit that leads to a mixed row is led to where that backs off.
  void LeaveMixedRow(std::uint32_t h) {
    const std::uint32_t row = o_.mixtures[o_.mixture[h]].row;
    if (row == kNoNode) return;
    w_.hits.target[h] = w_.rows.suffix[row];
    w_.hits.constant[h] = w_.rows.backoff[row];
  }

  // That a hit of the static LM makes, where that is not too long for it.
  FusedHistory HistoryOf(std::uint32_t length, std::uint32_t j, std::uint32_t h) const {
    FusedHistory history = {length, j + 1, h, kNoNode, kNoNode, o_.cache_node[h]};
    if (length > static_length_) return history;
    history.node = w_.hits.node[h];
    if (w_.hits.target[h] >= RowBegin(length, 0)) history.static_row = w_.hits.target[h];
    return history;
  }

  // A hit leads to `history`, so far with what its suffix's mixture keeps.
  void MixHistory(const FusedHistory& history, std::uint32_t of_suffix) {
    const std::uint32_t h = history.hit;
    FusedMixture mixture = o_.mixtures[of_suffix];
    const std::uint32_t suffix_row = mixture.row;
    FusedStep step = {0.0, 0.0, mixture.kept};
    if (history.cache_node != kNoNode) {
      step.share = cache_.ShareOf(history.cache_node, history.length);
      const double scaled_kept = task_.Scaled(std::log(1.0 - step.share));
      step.kept = mixture.kept *= 1.0 - step.share;
      mixture.scaled_kept += scaled_kept;
      w_.hits.constant[h] += scaled_kept;
    }
    if (HasMixedHits(history, suffix_row)) {
      if (history.node != kNoNode) {
        step.backoff = task_.lm->levels()[history.length - 1].Backoff(history.node);
      }
      const bool differs =
          history.static_row != kNoNode || step.backoff != 0.0 || step.share != 0.0;
      mixture.row = differs ? rows_.Add(history, step, suffix_row) : suffix_row;
      w_.hits.target[h] = mixture.row;
      w_.hits.constant[h] = 0.0;
    }
    o_.mixture[h] = mixture.row == suffix_row && history.cache_node == kNoNode
                        ? of_suffix
                        : static_cast<std::uint32_t>(o_.mixtures.size());
    if (o_.mixture[h] != of_suffix) o_.mixtures.Append(mixture);
  }

  // What the text has after a history it has after the last token too: so all mixed rows after
  // this token have the same candidates.
  bool HasMixedHits(const FusedHistory& history, std::uint32_t suffix_row) {
    if (history.length > 1) return suffix_row != kNoNode;
    return !text_.SuccessorsOf(history.hit).empty();
  }

  FusedTask& task_;
  FusedWorkspace& w_;
  FusedOverlay& o_;
  const ContextNgram& cache_;
  TextFinder text_;
  MixedRows rows_;
  const std::uint32_t static_length_;  // of the static LM's longest histories
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_CACHE_H_
