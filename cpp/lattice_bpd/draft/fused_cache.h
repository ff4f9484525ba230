// What a cache adds between steps 1 and 2 of the fused search: rows and hits of the static LM mixed
// with the cache (lm/context_ngram.h), in the place of those that HitFinder found. docs/search.md,
// "With a cache", has the proof; names are the same there.
//
// As all fused_*.h that compute, in an anonymous namespace (see fused_search.h).
#ifndef LATTICE_BPD_DRAFT_FUSED_CACHE_H_
#define LATTICE_BPD_DRAFT_FUSED_CACHE_H_

#include <algorithm>
#include <cmath>
#include <utility>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/fused_task.h"
#include "lattice_bpd/draft/fused_workspace.h"

namespace lattice_bpd {
namespace {

// Up to so many children of a history of the cache are looked at one after the other.
constexpr std::uint32_t kFewChildren = 4;

constexpr std::uint32_t kNoHit = 0;  // hit 0 stands for the context

// A history that one of the LMs knows, at the boundary before the slot.
struct FusedHistory {
  std::uint32_t length;
  std::uint32_t slot;
  std::uint32_t hit;         // that leads to it
  std::uint32_t node;        // in the static LM's level of its length, or kNoNode
  std::uint32_t static_row;  // which HitFinder made for it, or kNoNode
  std::uint32_t cache_node;  // where it is one of the cache, or kNoNode
  double scaled_backoff;     // alpha * ln of the static LM's, on the grid
};

// How a history differs from its suffix.
struct FusedStep {
  double backoff = 0.0;      // ln of the static LM's; read only where the cache has a part
  double share = 0.0;        // of the cache's counts behind this history: l
  double scaled_kept = 0.0;  // alpha * ln(1 - l), on the grid
};

class CacheMixer {
 public:
  // With a cache and one slot or more.
  CacheMixer(FusedTask* task, FusedWorkspace* workspace)
      : task_(*task),
        w_(*workspace),
        o_(workspace->overlay),
        cache_(*task->cached.cache),
        static_length_(task->max_length),
        cache_length_(static_cast<std::uint32_t>(task->cached.cache->order()) - 1) {}

  void Run() {
    if (!FindCacheNodes()) {
      if (task_.lm == nullptr) AddUniform();
      return;
    }
    const std::uint32_t longest = std::max(static_length_, cache_length_);
    AddRoots();
    for (std::uint32_t length = 1; length <= longest; ++length) AddRows(length);
    BeginBoundary();
    for (std::uint32_t j = 0; j + 1 < task_.num_slots; ++j) {
      for (std::uint32_t h = HitsBegin(longest, j); h < HitsBegin(longest, j + 1); ++h) {
        LeadToSuffix(h);
      }
    }
    std::swap(w_.hits, o_.hits);
    std::swap(w_.rows, o_.rows);
    std::swap(w_.row_begin, o_.row_begin);
    task_.max_length = longest;
  }

 private:
  // Rows and hits of the mixture, as HitFinder's stand.
  std::uint32_t RowBegin(std::uint32_t length, std::uint32_t j) const {
    return o_.row_begin[std::size_t{length} * task_.num_slots + j];
  }
  std::uint32_t HitsBegin(std::uint32_t length, std::uint32_t j) const {
    return o_.rows.hits_begin[RowBegin(length, j)];
  }
  void BeginBoundary() { o_.row_begin.Append(o_.rows.size); }

  std::uint32_t StaticRowBegin(std::uint32_t length, std::uint32_t j) const {
    return w_.row_begin[std::size_t{length} * task_.num_slots + j];
  }

  std::uint64_t* LaneBits(FusedRows* rows, std::uint32_t r) {
    return rows->lane_bits.data() + std::size_t{r} * task_.lane_words;
  }
  std::uint64_t* CachedBits(std::uint32_t r) {
    return o_.cached_bits.data() + std::size_t{r} * task_.lane_words;
  }

  // Of the roots' hits, which come first: the tokens that occur in the cache's text. False where
  // no path comes by a history of the cache.
  bool FindCacheNodes() {
    if (!cache_.IsActive(task_.lm != nullptr)) return false;
    const std::uint32_t last = w_.rows.hits_begin[task_.num_slots - 1];
    const ContextTrie& trie = cache_.trie();
    o_.cache_node.Resize(std::max<std::size_t>(o_.cache_node.size(), last));
    const std::uint32_t* symbols = w_.hits.node.data();  // of unigrams
    for (std::uint32_t h = 1; h < last; ++h) trie.PrefetchEntry(ContextTrie::kRoot, symbols[h]);
    for (std::uint32_t h = 1; h < last; ++h) trie.PrefetchNode(ContextTrie::kRoot, symbols[h]);
    bool found = task_.cached.state.length > 0;
    for (std::uint32_t h = 1; h < last; ++h) {
      o_.cache_node[h] = trie.Find(ContextTrie::kRoot, symbols[h]);
      if (!IsCacheHistory(1, o_.cache_node[h])) continue;
      found = true;
      trie.PrefetchFirstChild(o_.cache_node[h]);
    }
    return found;
  }

  // Without a static LM: the roots' hits get alpha * ln(1 / vocab_size).
  void AddUniform() {
    const double scaled = task_.Scaled(UniformLogProb());
    for (std::uint32_t h = 1; h < w_.rows.hits_begin[task_.num_slots]; ++h) {
      w_.hits.score[h] += scaled;
    }
  }

  double UniformLogProb() const { return -std::log(static_cast<double>(cache_.vocab_size())); }

  // Roots stay as they are: a cache has no share behind the empty history.
  void AddRoots() {
    if (task_.lm == nullptr) AddUniform();
    const std::uint32_t num_hits = w_.rows.hits_begin[task_.num_slots];
    o_.hits.size = 0;
    ReserveHits(num_hits);
    o_.hits.size = num_hits;
    o_.rows.size = 0;
    o_.row_begin.Clear();
    for (std::uint32_t h = 0; h < num_hits; ++h) {
      o_.hits.lane[h] = w_.hits.lane[h];
      o_.hits.node[h] = h;
      o_.hits.score[h] = w_.hits.score[h];
      o_.cached[h] = 0.0;
    }
    o_.hits.target[0] = 0;
    o_.hits.constant[0] = 0.0;
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) {
      BeginBoundary();
      const std::uint32_t r = AddRow(j, 0.0);
      std::copy_n(LaneBits(&w_.rows, j), task_.lane_words, LaneBits(&o_.rows, r));
      std::fill_n(CachedBits(r), task_.lane_words, 0);
      o_.rows.hits_begin[r] = w_.rows.hits_begin[j];
      o_.rows.hits_begin[r + 1] = w_.rows.hits_begin[j + 1];
      o_.kept[r] = 1.0;
      o_.scaled_kept[r] = 0.0;
    }
  }

  std::uint32_t AddRow(std::uint32_t suffix, double backoff) {
    o_.rows.Reserve(1, task_.lane_words);
    o_.cached_bits.Resize(o_.rows.lane_bits.size());
    o_.kept.Resize(o_.rows.hit.size());
    o_.scaled_kept.Resize(o_.rows.hit.size());
    const std::uint32_t r = o_.rows.size++;
    o_.rows.suffix[r] = suffix;
    o_.rows.backoff[r] = backoff;
    return r;
  }

  void ReserveHits(std::uint32_t extra) {
    o_.hits.Reserve(extra);
    o_.cache_node.Resize(o_.hits.lane.size());
    o_.cached.Resize(o_.hits.lane.size());
    o_.static_prob.Resize(o_.hits.lane.size());
  }

  // All rows of one length: from the context, then from the hits of rows one token shorter.
  void AddRows(std::uint32_t length) {
    BeginBoundary();
    const bool in_lm = length <= static_length_;
    AddStart(length);
    for (std::uint32_t j = 0; j + 1 < task_.num_slots; ++j) {
      BeginBoundary();
      const std::uint32_t end = HitsBegin(length - 1, j + 1);
      for (std::uint32_t h = HitsBegin(length - 1, j); h < end; ++h) {
        if (length == 1) {
          o_.hits.target[h] = j + 1;  // the root there
          o_.hits.constant[h] = 0.0;
        } else {
          LeadToSuffix(h);
        }
        FusedHistory history = {length, j + 1, h, kNoNode, kNoNode, kNoNode, 0.0};
        const std::uint32_t static_hit = o_.hits.node[h];
        if (in_lm && static_hit != kNoHit) {
          history.node = w_.hits.node[static_hit];
          const std::uint32_t row = w_.hits.target[static_hit];
          if (row >= StaticRowBegin(length, 0)) history.static_row = row;
          history.scaled_backoff = StaticBackoff(length, static_hit, history.static_row);
        }
        if (IsCacheHistory(length, o_.cache_node[h])) history.cache_node = o_.cache_node[h];
        AddHistory(history);
      }
    }
  }

  // The context's suffix of this length; hit 0 leads to it.
  void AddStart(std::uint32_t length) {
    FusedHistory history = {length, 0, kNoHit, kNoNode, kNoNode, kNoNode, 0.0};
    if (length <= task_.start.length) {
      history.node = task_.start.nodes[length - 1];
      history.scaled_backoff = task_.Scaled(task_.lm->levels()[length - 1].Backoff(history.node));
      const std::uint32_t row = StaticRowBegin(length, 0);
      if (row < StaticRowBegin(length, 1)) history.static_row = row;
    }
    if (length <= task_.cached.state.length) {
      history.cache_node = task_.cached.state.nodes[length - 1];
    }
    AddHistory(history);
  }

  // What HitFinder added to a hit's constant, which now may be its row's. (To read the record again
  // would be to wait for it again.)
  double StaticBackoff(std::uint32_t length, std::uint32_t hit, std::uint32_t row) const {
    const double constant = row == kNoNode ? w_.hits.constant[hit] : w_.rows.backoff[row];
    return length == 1 ? constant : constant - w_.hits.constant[w_.hits.suffix_hit[hit]];
  }

  bool IsCacheHistory(std::uint32_t length, std::uint32_t node) const {
    return length <= cache_length_ && node != kNoNode && cache_.trie().node(node).successors > 0;
  }

  // A hit leads where its suffix's does, unless what it makes a history of is known.
  void LeadToSuffix(std::uint32_t h) {
    o_.hits.target[h] = o_.hits.target[o_.hits.suffix_hit[h]];
    o_.hits.constant[h] = o_.hits.constant[o_.hits.suffix_hit[h]];
  }

  // The hit that leads to a known history pays what the history costs, or leads to its own row:
  // where it has n-grams of either LM, and where its suffix has some of the cache, which the static
  // LM's backoff, or the cache's share, would not fit.
  void AddHistory(const FusedHistory& history) {
    if (history.node == kNoNode && history.cache_node == kNoNode) return;
    const std::uint32_t suffix = o_.hits.target[history.hit];
    const bool in_cache = history.cache_node != kNoNode && FindChildren(history);
    const bool reads_backoff = in_cache || AnyOf(CachedBits(suffix));
    const FusedStep step = StepOf(history, reads_backoff);
    o_.hits.constant[history.hit] += history.scaled_backoff + step.scaled_kept;
    const bool differs = step.backoff != 0.0 || step.share != 0.0;
    const bool has_row = history.static_row != kNoNode || in_cache || (differs && reads_backoff);
    if (!has_row) return;
    const std::uint32_t r = AddRow(suffix, o_.hits.constant[history.hit]);
    o_.kept[r] = o_.kept[suffix] * (1.0 - step.share);
    o_.scaled_kept[r] = o_.scaled_kept[suffix] + step.scaled_kept;
    MarkLanes(history, in_cache, r);
    AddHits(history, step, in_cache, r);
    o_.hits.target[history.hit] = r;
    o_.hits.constant[history.hit] = 0.0;
  }

  FusedStep StepOf(const FusedHistory& history, bool reads_backoff) const {
    FusedStep step;
    if (reads_backoff && history.node != kNoNode) {
      step.backoff = task_.lm->levels()[history.length - 1].Backoff(history.node);
    }
    if (history.cache_node != kNoNode) {
      step.share = cache_.ShareOf(history.cache_node, history.length);
      step.scaled_kept = task_.Scaled(std::log(1.0 - step.share));
    }
    return step;
  }

  bool AnyOf(const std::uint64_t* bits) const {
    return std::any_of(bits, bits + task_.lane_words, [](std::uint64_t word) { return word != 0; });
  }

  // The cache's n-grams behind a history that end in a candidate: o_.child_bits, o_.lane_nodes.
  // Goes through the children where they are few: each waits for memory to say where the next is.
  bool FindChildren(const FusedHistory& history) {
    o_.child_bits.Resize(task_.lane_words);
    o_.lane_nodes.Resize(task_.stride);
    std::fill_n(o_.child_bits.data(), task_.lane_words, 0);
    const Symbol* symbols = w_.symbols.data() + task_.Lane(history.slot, 0);
    const std::uint32_t width = task_.Width(history.slot);
    const ContextTrie& trie = cache_.trie();
    if (trie.node(history.cache_node).distinct <= kFewChildren) {
      std::uint32_t child = trie.node(history.cache_node).first_child;
      for (; child != kNoNode; child = trie.node(child).next) {
        const Symbol word = trie.node(child).word;
        const Symbol* at = std::lower_bound(symbols, symbols + width, word);
        if (at == symbols + width || *at != word) continue;
        MarkChild(static_cast<std::uint32_t>(at - symbols), child);
      }
    } else {
      for (std::uint32_t lane = 0; lane < width; ++lane) {
        const std::uint32_t child = trie.Find(history.cache_node, symbols[lane]);
        if (child != kNoNode) MarkChild(lane, child);
      }
    }
    return AnyOf(o_.child_bits.data());
  }

  void MarkChild(std::uint32_t lane, std::uint32_t node) {
    o_.child_bits[lane / 64] |= std::uint64_t{1} << (lane % 64);
    o_.lane_nodes[lane] = node;
  }

  // Which lanes are hits of row r, and behind which the cache has a share.
  void MarkLanes(const FusedHistory& history, bool in_cache, std::uint32_t r) {
    const std::uint64_t* suffix_bits = CachedBits(o_.rows.suffix[r]);
    const std::uint64_t* static_bits =
        history.static_row == kNoNode ? nullptr : LaneBits(&w_.rows, history.static_row);
    for (std::uint32_t word = 0; word < task_.lane_words; ++word) {
      CachedBits(r)[word] = suffix_bits[word] | (in_cache ? o_.child_bits[word] : 0);
      LaneBits(&o_.rows, r)[word] =
          CachedBits(r)[word] | (static_bits == nullptr ? 0 : static_bits[word]);
    }
  }

  // Lanes of a row are lanes of its suffix's row; so are those of the static LM.
  void AddHits(const FusedHistory& history, const FusedStep& step, bool in_cache, std::uint32_t r) {
    ReserveHits(task_.stride);
    const std::uint32_t suffix = o_.rows.suffix[r];
    const std::uint64_t* suffix_bits = LaneBits(&o_.rows, suffix);
    std::uint32_t suffix_hit = o_.rows.hits_begin[suffix];
    std::uint32_t static_hit =
        history.static_row == kNoNode ? kNoHit : w_.rows.hits_begin[history.static_row];
    o_.rows.hits_begin[r] = o_.hits.size;
    for (std::uint32_t word = 0; word < task_.lane_words; ++word) {
      const std::uint64_t row_bits = LaneBits(&o_.rows, r)[word];
      for (std::uint64_t bits = row_bits; bits != 0; bits &= bits - 1) {
        const auto bit = static_cast<std::uint32_t>(__builtin_ctzll(bits));
        const std::uint32_t lane = 64 * word + bit;
        const std::uint64_t before = (std::uint64_t{1} << bit) - 1;
        const std::uint32_t h = o_.hits.size++;
        const bool is_static =
            static_hit != kNoHit && (LaneBits(&w_.rows, history.static_row)[word] >> bit & 1) != 0;
        const bool is_child = in_cache && (o_.child_bits[word] >> bit & 1) != 0;
        o_.hits.lane[h] = lane;
        o_.hits.node[h] = is_static ? static_hit++ : kNoHit;
        o_.hits.suffix_hit[h] = suffix_hit + static_cast<std::uint32_t>(
                                                 __builtin_popcountll(suffix_bits[word] & before));
        o_.cache_node[h] = is_child ? o_.lane_nodes[lane] : kNoNode;
        ScoreHit(history, step, r, h);
      }
      suffix_hit += static_cast<std::uint32_t>(__builtin_popcountll(suffix_bits[word]));
    }
    o_.rows.hits_begin[r + 1] = o_.hits.size;
  }

  // Where the cache has a share: head score + alpha * ln P, else the static LM's score and the
  // static LM's share.
  void ScoreHit(const FusedHistory& history, const FusedStep& step, std::uint32_t r,
                std::uint32_t h) {
    const std::uint32_t suffix_hit = o_.hits.suffix_hit[h];
    const std::uint32_t node = o_.cache_node[h];
    const double own = node == kNoNode ? 0.0 : step.share * cache_.ProbOf(node);
    o_.cached[h] = (1.0 - step.share) * o_.cached[suffix_hit] + own;
    const std::uint32_t static_hit = o_.hits.node[h];
    if (o_.cached[h] == 0.0) {
      o_.hits.score[h] = w_.hits.score[static_hit] + o_.scaled_kept[r];
      return;
    }
    if (static_hit != kNoHit) {
      o_.static_prob[h] = StaticProb(history.length, static_hit);
    } else {
      const double shorter =
          history.length == 1 ? StaticProb(0, suffix_hit) : o_.static_prob[suffix_hit];
      o_.static_prob[h] = step.backoff == 0.0 ? shorter : std::exp(step.backoff) * shorter;
    }
    const double log_prob = std::log(o_.kept[r] * o_.static_prob[h] + o_.cached[h]);
    const double* heads = w_.head_scores.data() + task_.Lane(history.slot, 0);
    o_.hits.score[h] = heads[o_.hits.lane[h]] + task_.Scaled(log_prob);
  }

  // P of an n-gram of the static LM, from a hit behind a row of so many tokens.
  double StaticProb(std::uint32_t length, std::uint32_t hit) const {
    if (task_.lm == nullptr) return 1.0 / cache_.vocab_size();
    return std::exp(static_cast<double>(task_.lm->levels()[length].LogProb(w_.hits.node[hit])));
  }

  FusedTask& task_;
  FusedWorkspace& w_;
  FusedOverlay& o_;
  const ContextNgram& cache_;
  const std::uint32_t static_length_;  // of the static LM's longest histories
  const std::uint32_t cache_length_;   // of the cache's
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_CACHE_H_
