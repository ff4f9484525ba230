// Which candidates a cache's text has, and which it has after a token: searches in the text's trie
// (lm/context_trie.h), step by step for all slots together, so that memory answers many at once.
//
// As all fused_*.h that compute, in an anonymous namespace (see fused_search.h).
#ifndef LATTICE_BPD_DRAFT_FUSED_TEXT_H_
#define LATTICE_BPD_DRAFT_FUSED_TEXT_H_

#include <algorithm>

#include "lattice_bpd/draft/fused_task.h"
#include "lattice_bpd/draft/fused_workspace.h"

namespace lattice_bpd {
namespace {

constexpr std::uint32_t kNoHit = 0;  // hit 0 is the context

class TextFinder {
 public:
  TextFinder(const FusedTask& task, FusedWorkspace* workspace)
      : task_(task),
        w_(*workspace),
        o_(workspace->overlay),
        trie_(task.cached.cache->trie()),
        cache_length_(static_cast<std::uint32_t>(task.cached.cache->order()) - 1) {}

  // Of the roots' hits: o_.cache_node, kNoNode at the last slot, and what the text has after them.
  // False where no path comes by a cache history.
  bool Run() {
    if (!FindTokens()) return false;
    ListSuccessors();
    FindSuccessors();
    return true;
  }

  // What the text has after the last token of the context (hit 0), or of a root's hit, by lane.
  Span<FusedSuccessor> SuccessorsOf(std::uint32_t hit) const {
    const std::uint32_t begin = o_.successors_begin[hit];
    return {o_.successors.data() + begin, o_.successors_begin[hit + 1] - begin};
  }

  bool IsCacheHistory(std::uint32_t length, std::uint32_t node) const {
    return length <= cache_length_ && node != kNoNode && trie_.node(node).successors > 0;
  }

 private:
  // Of slot j's candidates, by lane.
  std::uint32_t RootHits(std::uint32_t j) const { return w_.rows.hits_begin[j]; }

  std::uint64_t* TextBits(std::uint32_t slot) {
    return o_.text_bits.data() + std::size_t{slot} * task_.lane_words;
  }

  template <typename Visit>
  void ForEachSymbol(const Visit& visit) const {
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) {
      const Symbol* symbols = w_.symbols.data() + task_.Lane(j, 0);
      for (std::uint32_t lane = 0; lane < task_.Width(j); ++lane) visit(symbols[lane]);
    }
  }

  bool FindTokens() {
    const std::uint32_t end = RootHits(task_.num_slots);
    ForEachSymbol([this](Symbol symbol) { trie_.PrefetchEntry(ContextTrie::kRoot, symbol); });
    ForEachSymbol([this](Symbol symbol) { trie_.PrefetchNode(ContextTrie::kRoot, symbol); });
    o_.cache_node.Resize(std::max<std::size_t>(o_.cache_node.size(), end));
    o_.text_bits.Resize(std::size_t{task_.num_slots} * task_.lane_words);
    std::fill(o_.text_bits.begin(), o_.text_bits.end(), 0);
    const ContextState& state = task_.cached.state;
    o_.cache_node[kNoHit] = state.length > 0 ? state.nodes[0] : kNoNode;
    bool has_match = state.length > 0;
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) {
      const bool is_last = j + 1 == task_.num_slots;
      const Symbol* symbols = w_.symbols.data() + task_.Lane(j, 0);
      for (std::uint32_t lane = 0; lane < task_.Width(j); ++lane) {
        const std::uint32_t h = RootHits(j) + lane;
        const std::uint32_t node = trie_.Find(ContextTrie::kRoot, symbols[lane]);
        const bool is_history = !is_last && IsCacheHistory(1, node);
        o_.cache_node[h] = is_history ? node : kNoNode;
        has_match |= is_history;
        TextBits(j)[lane / 64] |= std::uint64_t{node != kNoNode} << (lane % 64);
      }
    }
    return has_match;
  }

  // Those that the text may have.
  void ListSuccessors() {
    o_.successors.Clear();
    o_.successors_begin.Clear();
    ListSuccessors(kNoHit, 0);
    for (std::uint32_t j = 0; j + 1 < task_.num_slots; ++j) {
      for (std::uint32_t h = RootHits(j); h < RootHits(j + 1); ++h) ListSuccessors(h, j + 1);
    }
    o_.successors_begin.Append(static_cast<std::uint32_t>(o_.successors.size()));
  }

  void ListSuccessors(std::uint32_t hit, std::uint32_t slot) {
    o_.successors_begin.Append(static_cast<std::uint32_t>(o_.successors.size()));
    const std::uint32_t node = o_.cache_node[hit];
    if (node == kNoNode) return;
    o_.successors.Reserve(o_.successors.size() + task_.stride + 1);
    FusedSuccessor* out = o_.successors.end();
    const Symbol* symbols = w_.symbols.data() + task_.Lane(slot, 0);
    for (std::uint32_t word = 0; word < task_.lane_words; ++word) {
      for (std::uint64_t bits = TextBits(slot)[word]; bits != 0; bits &= bits - 1) {
        const std::uint32_t lane = 64 * word + static_cast<std::uint32_t>(__builtin_ctzll(bits));
        *out = {lane, symbols[lane], node, kNoNode};
        out += trie_.MayHave(node, symbols[lane]);
      }
    }
    o_.successors.Resize(static_cast<std::size_t>(out - o_.successors.data()));
  }

  // Keeps those that the text has.
  void FindSuccessors() {
    const Span<FusedSuccessor> listed(o_.successors.data(), o_.successors.size());
    for (const FusedSuccessor& one : listed) trie_.PrefetchEntry(one.history, one.symbol);
    for (const FusedSuccessor& one : listed) trie_.PrefetchNode(one.history, one.symbol);
    std::uint32_t kept = 0;
    std::uint32_t at = 0;
    for (std::size_t hit = 0; hit + 1 < o_.successors_begin.size(); ++hit) {
      o_.successors_begin[hit] = kept;
      for (; at < o_.successors_begin[hit + 1]; ++at) {
        FusedSuccessor one = listed[at];
        one.cache_node = trie_.Find(one.history, one.symbol);
        o_.successors[kept] = one;
        kept += one.cache_node != kNoNode;
      }
    }
    o_.successors_begin[o_.successors_begin.size() - 1] = kept;
  }

  const FusedTask& task_;
  FusedWorkspace& w_;
  FusedOverlay& o_;
  const ContextTrie& trie_;
  const std::uint32_t cache_length_;  // of the cache's longest histories
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_TEXT_H_
