#include "lattice_bpd/lm/backoff_lm.h"

#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/mapped_file.h"
#include "lattice_bpd/lm/lm_fst.h"

namespace lattice_bpd {

struct BackoffLm::Storage {
  Trie trie;
  std::vector<std::vector<std::uint32_t>> suffix;  // one for each level
};

namespace {

// The child of node `history` of level m - 1 (or of the root, m = 0) with this word, or kNoNode.
std::uint32_t FindInTrie(const Trie& trie, int m, std::uint32_t history, Symbol word) {
  if (m == 0) return word;
  const std::vector<std::uint32_t>& begin = trie.levels[m - 1].child_begin;
  const std::vector<Symbol>& words = trie.levels[m].word;
  const auto last = words.begin() + begin[history + 1];
  const auto found = std::lower_bound(words.begin() + begin[history], last, word);
  if (found == last || *found != word) return BackoffLm::kNoNode;
  return static_cast<std::uint32_t>(found - words.begin());
}

// Links of level m (>= 1): the suffix of a node is the child, by the same word, of its history's
// suffix. `below` holds the links of level m - 1 (empty for m = 1: its suffixes are unigrams).
std::vector<std::uint32_t> LinkSuffixes(const Trie& trie, int m,
                                        const std::vector<std::uint32_t>& below) {
  const TrieLevel& histories = trie.levels[m - 1];
  std::vector<std::uint32_t> links(trie.levels[m].size());
  for (std::uint32_t h = 0; h < histories.size(); ++h) {
    for (std::uint32_t i = histories.child_begin[h]; i < histories.child_begin[h + 1]; ++i) {
      const Symbol word = trie.levels[m].word[i];
      links[i] = FindInTrie(trie, m - 1, m == 1 ? 0 : below[h], word);
      if (links[i] == BackoffLm::kNoNode) {
        throw ValueError(StrCat("trie: entry ", i, " of order ", m + 1, " (last symbol ", word,
                                ") has no suffix in order ", m,
                                "; insert the missing n-grams first (CloseSuffixes)"));
      }
    }
  }
  return links;
}

}  // namespace

std::shared_ptr<const BackoffLm> BackoffLm::FromTrie(Trie trie) {
  ValidateTrie(trie);
  auto storage = std::make_unique<Storage>();
  storage->trie = std::move(trie);
  const Trie& own = storage->trie;
  storage->suffix.resize(own.levels.size());
  std::vector<LevelView> views;
  for (int m = 0; m < own.order(); ++m) {
    if (m > 0) storage->suffix[m] = LinkSuffixes(own, m, storage->suffix[m - 1]);
    const TrieLevel& level = own.levels[m];
    views.push_back({level.word, level.log_prob, level.backoff, level.child_begin, {}});
    if (m > 0 && m + 1 < own.order()) views.back().suffix = storage->suffix[m];
  }
  if (own.order() > 1) std::vector<std::uint32_t>().swap(storage->suffix.back());
  auto lm = std::make_shared<BackoffLm>(own.vocabulary, std::move(views), nullptr);
  lm->storage_ = std::move(storage);
  return lm;
}

BackoffLm::BackoffLm(const Vocabulary& vocabulary, std::vector<LevelView> levels,
                     std::shared_ptr<const MappedFile> file)
    : vocabulary_(vocabulary),
      levels_(std::move(levels)),
      file_(std::move(file)),
      acceptor_cache_(std::make_unique<AcceptorCache>()) {}

BackoffLm::~BackoffLm() = default;

std::uint32_t BackoffLm::FindChild(LmState state, Symbol word) const {
  if (state.length == 0) return word;
  const auto [first, last] = Children(state);
  const Symbol* words = levels_[state.length].word.data();
  const Symbol* found = std::lower_bound(words + first, words + last, word);
  if (found == words + last || *found != word) return kNoNode;
  return static_cast<std::uint32_t>(found - words);
}

LmState BackoffLm::NextState(LmState state, Symbol word) const {
  while (state.length + 1 >= levels_.size()) {
    if (state.length == 0) return LmState{};  // order 1: no history
    state = Suffix(state);
  }
  for (;;) {
    const std::uint32_t node = FindChild(state, word);
    if (node != kNoNode) return LmState{node, state.length + 1};
    state = Suffix(state);
  }
}

LmStep BackoffLm::Query(LmState state, Symbol word) const {
  LmStep step;
  for (;;) {
    const std::uint32_t node = FindChild(state, word);
    if (node != kNoNode) {
      step.log_prob = levels_[state.length].log_prob[node];
      const bool is_history = state.length + 1 < levels_.size();
      step.next = is_history ? LmState{node, state.length + 1} : NextState(state, word);
      return step;
    }
    step.backoffs[step.num_backoffs++] = Backoff(state);
    state = Suffix(state);
  }
}

LmState BackoffLm::StateOf(Span<Symbol> history) const {
  LmState state;
  for (const Symbol symbol : history.Last(levels_.size() - 1)) state = NextState(state, symbol);
  return state;
}

LmState BackoffLm::StateOfContext(Span<TokenId> context, bool bos) const {
  for (std::size_t i = 0; i < context.size(); ++i) {
    if (context[i] < 0 || static_cast<std::uint32_t>(context[i]) >= vocabulary_.vocab_size) {
      throw ValueError(StrCat("context: token id ", context[i], " at position ", i,
                              "; expected 0..", vocabulary_.vocab_size - 1,
                              " (the LM's vocabulary)"));
    }
  }
  const bool has_bos = !context.empty() && static_cast<Symbol>(context[0]) == vocabulary_.bos;
  Symbol history[kMaxOrder];
  std::size_t size = 0;
  const std::size_t wanted = levels_.size() - 1;
  if (bos && !has_bos && context.size() < wanted) history[size++] = vocabulary_.bos;
  for (const TokenId token : context.Last(wanted)) history[size++] = static_cast<Symbol>(token);
  return StateOf(Span<Symbol>(history, size));
}

}  // namespace lattice_bpd
