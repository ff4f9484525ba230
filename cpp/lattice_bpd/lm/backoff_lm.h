// A backoff n-gram LM over symbols (base/label.h): the object that everything else queries.
//
//   ln P(w | h) = log_prob(hw)                       where the n-gram hw is in the model
//               = backoff(h) + ln P(w | suffix(h))   else ("failure": the weight is paid only here)
//
// Storage is the forward trie of lm/trie.h with a suffix link for each history, in arrays that
// live in memory or in a mapped file (lm_file.h). Every index read from a file is clamped before
// it is followed, so that a damaged file can give wrong numbers but never a wild read.
//
// LmState is a plain value: the longest suffix of the history that the model knows (at most
// order - 1 symbols). Two histories with the same state get the same probabilities for ever.
// Immutable after construction, so any number of threads may query it. No query allocates.
#ifndef LATTICE_BPD_LM_BACKOFF_LM_H_
#define LATTICE_BPD_LM_BACKOFF_LM_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"
#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/lm/vocabulary.h"

namespace lattice_bpd {

class AcceptorCache;  // lm_fst.h: the LM as FSTs, built at first use
class MappedFile;

struct LmState {
  std::uint32_t node = 0;    // index in level length - 1; 0 for the empty history
  std::uint32_t length = 0;  // symbols of history that the model knows, 0 .. order - 1

  bool operator==(const LmState& other) const {
    return node == other.node && length == other.length;
  }
};

// One level of the trie as it is stored; see TrieLevel for the invariants.
struct LevelView {
  Span<Symbol> word;                // empty on level 0, where node i is symbol i
  Span<float> log_prob;             // natural log
  Span<float> backoff;              // natural log; empty on the highest level
  Span<std::uint32_t> child_begin;  // empty on the highest level
  Span<std::uint32_t> suffix;       // node of the level below; empty on level 0 and the highest

  std::size_t size() const { return log_prob.size(); }
};

// What a query finds on its way: the backoffs paid, the log probability, the state after it.
struct LmStep {
  int num_backoffs = 0;
  float backoffs[kMaxOrder] = {};
  float log_prob = 0.0f;
  LmState next;

  double TotalLogProb() const {
    double total = log_prob;
    for (int i = 0; i < num_backoffs; ++i) total += backoffs[i];
    return total;
  }
};

class BackoffLm {
 public:
  // Checks the trie (ValidateTrie, suffix closure) and takes it over. Throws ValueError.
  static std::shared_ptr<const BackoffLm> FromTrie(Trie trie);

  // Takes levels that point into a mapped file; used by lm_file.cc after its own checks.
  BackoffLm(const Vocabulary& vocabulary, std::vector<LevelView> levels,
            std::shared_ptr<const MappedFile> file);
  ~BackoffLm();
  BackoffLm(const BackoffLm&) = delete;
  BackoffLm& operator=(const BackoffLm&) = delete;

  int order() const { return static_cast<int>(levels_.size()); }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  const std::vector<LevelView>& levels() const { return levels_; }
  AcceptorCache& acceptor_cache() const { return *acceptor_cache_; }

  // The state of a history, its latest symbol last. Symbols must be below num_symbols().
  LmState StateOf(Span<Symbol> history) const;

  // The state after a text's tokens; <s> stands before them where bos is true, unless the text
  // itself starts with a token that is named as <s>. Throws ValueError for ids outside the
  // vocabulary.
  LmState StateOfContext(Span<TokenId> context, bool bos) const;

  // ln P(word | state) with exact backoff. Cost: at most `order` binary searches for the
  // probability, and as many for the next state.
  LmStep Query(LmState state, Symbol word) const;

  // The state that a longer history falls back to: one symbol shorter. state.length must be > 0.
  LmState Suffix(LmState state) const {
    if (state.length <= 1) return LmState{};
    const Span<std::uint32_t>& suffix = levels_[state.length - 1].suffix;
    const std::uint32_t last = static_cast<std::uint32_t>(levels_[state.length - 2].size()) - 1;
    return LmState{std::min(suffix[state.node], last), state.length - 1};
  }

  float Backoff(LmState state) const {
    return state.length == 0 ? 0.0f : levels_[state.length - 1].backoff[state.node];
  }

  // The nodes of level state.length that extend the state: [first, second). For the empty
  // history that is the whole of level 0.
  std::pair<std::uint32_t, std::uint32_t> Children(LmState state) const {
    const std::uint32_t size = static_cast<std::uint32_t>(levels_[state.length].size());
    if (state.length == 0) return {0, size};
    const Span<std::uint32_t>& begin = levels_[state.length - 1].child_begin;
    const std::uint32_t first = std::min(begin[state.node], size);
    return {first, std::clamp(begin[state.node + 1], first, size)};
  }

  // The node of level state.length for (state, word), or kNoNode.
  static constexpr std::uint32_t kNoNode = 0xffffffffu;
  std::uint32_t FindChild(LmState state, Symbol word) const;

 private:
  struct Storage;  // the arrays of a model that was not mapped

  // The longest known history that ends in `word`, found from the suffixes of `state`.
  LmState NextState(LmState state, Symbol word) const;

  Vocabulary vocabulary_;
  std::vector<LevelView> levels_;
  std::shared_ptr<const MappedFile> file_;
  std::unique_ptr<const Storage> storage_;
  std::unique_ptr<AcceptorCache> acceptor_cache_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_BACKOFF_LM_H_
