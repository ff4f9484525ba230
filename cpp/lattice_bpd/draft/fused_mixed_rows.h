// Mixed rows: for a history that a cache continues with candidates, a row of those alone, scored by
// the static LM mixed with the cache. All other candidates back off to the static LM's own row.
// docs/search.md, "With an n-gram cache", has the proof; names are the same there.
//
// As all fused_*.h that compute, in an anonymous namespace (see fused_search.h).
#ifndef LATTICE_BPD_DRAFT_FUSED_MIXED_ROWS_H_
#define LATTICE_BPD_DRAFT_FUSED_MIXED_ROWS_H_

#include <algorithm>
#include <cmath>

#include "lattice_bpd/draft/fused_task.h"
#include "lattice_bpd/draft/fused_text.h"
#include "lattice_bpd/draft/fused_workspace.h"

namespace lattice_bpd {
namespace {

// A history that one of the LMs knows, at the boundary before the slot.
struct FusedHistory {
  std::uint32_t length;
  std::uint32_t slot;
  std::uint32_t hit;         // that leads to it
  std::uint32_t node;        // in the static LM's level of its length, or kNoNode
  std::uint32_t static_row;  // which HitFinder made for it, or kNoNode
  std::uint32_t cache_node;  // where it is one of the cache, or kNoNode
};

// How P after a history differs from P after its suffix.
struct FusedStep {
  double backoff;  // ln of the static LM's
  double share;    // of the cache's counts after this history: l
  double kept;     // of the static LM, by this history and all its suffixes: A
};

class MixedRows {
 public:
  MixedRows(const FusedTask& task, const TextFinder& text, FusedWorkspace* workspace)
      : task_(task),
        text_(text),
        w_(*workspace),
        o_(workspace->overlay),
        cache_(*task.cached.cache) {}

  // Reserves space for a row.
  void Reserve() {
    w_.hits.Reserve(task_.stride);
    w_.rows.Reserve(1, task_.lane_words);
    if (o_.mixture.size() != w_.hits.lane.size()) {
      o_.mixture.Resize(w_.hits.lane.size());
      o_.cache_node.Resize(w_.hits.lane.size());
      o_.cached.Resize(w_.hits.lane.size());
      o_.static_prob.Resize(w_.hits.lane.size());
    }
    o_.length.Resize(w_.rows.hit.size());
  }

  // The row of a history, which backs off to where the history's hit leads so far. Its candidates
  // are those of its suffix's mixed row; after one token, what the text has there.
  std::uint32_t Add(const FusedHistory& history, const FusedStep& step, std::uint32_t suffix_row) {
    Reserve();
    const std::uint32_t r = w_.rows.size++;
    w_.rows.hit[r] = history.hit;
    w_.rows.suffix[r] = w_.hits.target[history.hit];
    w_.rows.backoff[r] = w_.hits.constant[history.hit];
    o_.length[r] = history.length;
    if (history.length == 1) {
      AddFirstHits(history, step, LaneBits(r));
    } else {
      std::copy_n(LaneBits(suffix_row), task_.lane_words, LaneBits(r));
      AddHits(history, step, suffix_row);
    }
    w_.rows.hits_begin[r + 1] = w_.hits.size;
    return r;
  }

 private:
  std::uint64_t* LaneBits(std::uint32_t r) {
    return w_.rows.lane_bits.data() + std::size_t{r} * task_.lane_words;
  }

  void AddFirstHits(const FusedHistory& history, const FusedStep& step, std::uint64_t* lane_bits) {
    std::fill_n(lane_bits, task_.lane_words, 0);
    for (const FusedSuccessor& successor : text_.SuccessorsOf(history.hit)) {
      lane_bits[successor.lane / 64] |= std::uint64_t{1} << (successor.lane % 64);
      const std::uint32_t root_hit = w_.rows.hits_begin[history.slot] + successor.lane;
      AddHit(history, step, successor.lane, root_hit, successor.cache_node, 0.0);
    }
  }

  void AddHits(const FusedHistory& history, const FusedStep& step, std::uint32_t suffix_row) {
    const std::uint32_t end = w_.rows.hits_begin[suffix_row + 1];
    for (std::uint32_t s = w_.rows.hits_begin[suffix_row]; s < end; ++s) {
      const std::uint32_t lane = w_.hits.lane[s];
      const std::uint32_t child = FindChild(history, lane);
      AddHit(history, step, lane, s, child, o_.cached[s]);
    }
  }

  std::uint32_t FindChild(const FusedHistory& history, std::uint32_t lane) const {
    if (history.cache_node == kNoNode) return kNoNode;
    const Symbol symbol = w_.symbols[task_.Lane(history.slot, lane)];
    if (!cache_.trie().MayHave(history.cache_node, symbol)) return kNoNode;
    return cache_.trie().Find(history.cache_node, symbol);
  }

  // `child` is the n-gram in the text, or kNoNode; `cached` the cache's part of P after the
  // suffix.
  void AddHit(const FusedHistory& history, const FusedStep& step, std::uint32_t lane,
              std::uint32_t suffix_hit, std::uint32_t child, double cached) {
    const std::uint32_t h = w_.hits.size++;
    w_.hits.lane[h] = lane;
    w_.hits.suffix_hit[h] = suffix_hit;
    w_.hits.node[h] = StaticHit(history, lane);
    KeepChild(history, h, child);
    const double own = child == kNoNode ? 0.0 : step.share * cache_.ProbOf(child);
    o_.cached[h] = (1.0 - step.share) * cached + own;
    o_.static_prob[h] = StaticProb(history, step, h);
    const double log_prob = std::log(step.kept * o_.static_prob[h] + o_.cached[h]);
    w_.hits.score[h] = w_.head_scores[task_.Lane(history.slot, lane)] + task_.Scaled(log_prob);
  }

  // That of the history and the candidate, or kNoHit.
  std::uint32_t StaticHit(const FusedHistory& history, std::uint32_t lane) {
    if (history.static_row == kNoNode) return kNoHit;
    const std::uint64_t* bits = LaneBits(history.static_row);
    const std::uint32_t last = lane / 64;
    const std::uint64_t bit = std::uint64_t{1} << (lane % 64);
    if ((bits[last] & bit) == 0) return kNoHit;
    auto rank = static_cast<std::uint32_t>(__builtin_popcountll(bits[last] & (bit - 1)));
    for (std::uint32_t word = 0; word < last; ++word) {
      rank += static_cast<std::uint32_t>(__builtin_popcountll(bits[word]));
    }
    return w_.rows.hits_begin[history.static_row] + rank;
  }

  // For the histories of the next boundary.
  void KeepChild(const FusedHistory& history, std::uint32_t h, std::uint32_t child) {
    const bool is_history = text_.IsCacheHistory(history.length + 1, child);
    o_.cache_node[h] = is_history ? child : kNoNode;
    if (!is_history) return;
    cache_.trie().PrefetchMarks(child);
    if (w_.hits.node[h] != kNoHit) o_.cache_node[w_.hits.node[h]] = child;
  }

  // P of the static LM.
  double StaticProb(const FusedHistory& history, const FusedStep& step, std::uint32_t h) const {
    const std::uint32_t static_hit = w_.hits.node[h];
    if (static_hit != kNoHit) return ProbOf(history.length, static_hit);
    const std::uint32_t suffix_hit = w_.hits.suffix_hit[h];
    const double shorter = history.length == 1 ? ProbOf(0, suffix_hit) : o_.static_prob[suffix_hit];
    return step.backoff == 0.0 ? shorter : std::exp(step.backoff) * shorter;
  }

  // Of an n-gram of the static LM, from a hit after a row of so many tokens.
  double ProbOf(std::uint32_t length, std::uint32_t hit) const {
    if (task_.lm == nullptr) return 1.0 / cache_.vocab_size();
    return std::exp(static_cast<double>(task_.lm->levels()[length].LogProb(w_.hits.node[hit])));
  }

  const FusedTask& task_;
  const TextFinder& text_;
  FusedWorkspace& w_;
  FusedOverlay& o_;
  const ContextNgram& cache_;
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_MIXED_ROWS_H_
