#include "lattice_bpd/lm/backoff_lm.h"

#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/huge_pages.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/lm/lm_fst.h"
#include "lattice_bpd/lm/suffix_links.h"

namespace lattice_bpd {

std::shared_ptr<const BackoffLm> BackoffLm::FromTrie(const Trie& trie, Packing packing,
                                                     SuffixClosure closure, int num_threads) {
  ValidateTrie(trie);
  std::vector<std::uint32_t> links;
  for (int m = 1; m < trie.order() && closure == SuffixClosure::kUnknown; ++m) {
    // Throws where a suffix is missing.
    links = LinkLevel(trie.levels, m, links, num_threads);
  }
  std::vector<LevelStorage> storage(trie.levels.size());
  RunParallel(storage.size(), num_threads, [&](std::size_t i) {
    const std::size_t m = storage.size() - 1 - i;  // the largest first
    storage[m] = PackLevel(trie, static_cast<int>(m), packing);
  });
  std::vector<PackedLevel> levels;
  for (int m = 0; m < trie.order(); ++m) {
    const std::size_t children = m + 1 < trie.order() ? trie.levels[m + 1].size() : 0;
    levels.push_back(ViewOf(storage[m], static_cast<std::uint32_t>(children)));
    MoveToHugePages(storage[m].keys.data(), storage[m].keys.size());
    MoveToHugePages(storage[m].payload.data(), storage[m].payload.size());
  }
  // Moving the vector keeps the buffers that the views point to.
  return std::make_shared<BackoffLm>(trie.vocabulary, std::move(levels), std::move(storage),
                                     nullptr);
}

std::shared_ptr<const BackoffLm> BackoffLm::WithWords(std::shared_ptr<const BackoffLm> lm,
                                                      std::shared_ptr<const WordList> words) {
  Vocabulary vocabulary = lm->vocabulary();
  if (words->size() != vocabulary.vocab_size) {
    throw ValueError(StrCat("words: ", words->size(), " of them; expected one for each of the ",
                            vocabulary.vocab_size, " token ids"));
  }
  vocabulary.words = std::move(words);
  std::vector<PackedLevel> levels = lm->levels();
  return std::make_shared<BackoffLm>(vocabulary, std::move(levels), std::vector<LevelStorage>(),
                                     std::move(lm));
}

BackoffLm::BackoffLm(const Vocabulary& vocabulary, std::vector<PackedLevel> levels,
                     std::vector<LevelStorage> storage, std::shared_ptr<const void> owner)
    : vocabulary_(vocabulary),
      levels_(std::move(levels)),
      storage_(std::move(storage)),
      owner_(std::move(owner)),
      acceptor_cache_(std::make_unique<AcceptorCache>()) {}

BackoffLm::~BackoffLm() = default;

LmStep BackoffLm::Query(const LmState& state, Symbol word) const {
  LmStep step;
  word = vocabulary_.ListedOrUnk(word);
  std::uint32_t node = word;
  std::uint32_t matched = 0;  // symbols of history of the longest n-gram found
  const std::uint32_t longest = static_cast<std::uint32_t>(levels_.size()) - 1;
  for (;;) {
    if (matched < longest) step.next.nodes[matched] = node;
    if (matched == state.length) break;
    const auto [begin, end] = Children(matched + 1, state.nodes[matched]);
    const std::uint32_t longer = levels_[matched + 1].Find(begin, end, word);
    if (longer == kNoNode) break;
    node = longer;
    ++matched;
  }
  step.log_prob = levels_[matched].LogProb(node);
  step.next.length = std::min(matched + 1, longest);
  for (std::uint32_t length = state.length; length > matched; --length) {
    step.backoffs[step.num_backoffs++] = levels_[length - 1].Backoff(state.nodes[length - 1]);
  }
  return step;
}

LmState BackoffLm::StateOf(Span<Symbol> history) const {
  LmState state;
  for (const Symbol symbol : history.Last(levels_.size() - 1)) state = Query(state, symbol).next;
  return state;
}

LmState BackoffLm::StateOfContext(Span<TokenId> context, bool bos) const {
  for (std::size_t i = 0; i < context.size(); ++i) {
    if (context[i] < 0) {
      throw ValueError(
          StrCat("context: token id ", context[i], " at position ", i, "; expected 0 or above"));
    }
  }
  const bool has_bos = !context.empty() && vocabulary_.SymbolOf(context[0]) == vocabulary_.bos;
  Symbol history[kMaxOrder];
  std::size_t size = 0;
  const std::size_t wanted = levels_.size() - 1;
  if (bos && !has_bos && context.size() < wanted) history[size++] = vocabulary_.bos;
  for (const TokenId token : context.Last(wanted)) history[size++] = vocabulary_.SymbolOf(token);
  return StateOf(Span<Symbol>(history, size));
}

}  // namespace lattice_bpd
