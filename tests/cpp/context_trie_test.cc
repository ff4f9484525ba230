// Counts of the n-grams of a text, in a sliding window.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "lattice_bpd/lm/context_trie.h"
#include "random_lattices.h"

namespace lattice_bpd {
namespace {

using Tokens = std::vector<TokenId>;

// How often each n-gram of up to `order` tokens occurs in a text.
std::map<Tokens, int> CountNgrams(const Tokens& text, int order) {
  std::map<Tokens, int> counts;
  for (std::size_t first = 0; first < text.size(); ++first) {
    for (std::size_t size = 1; size <= std::min<std::size_t>(order, text.size() - first); ++size) {
      const auto begin = text.begin() + static_cast<std::ptrdiff_t>(first);
      ++counts[Tokens(begin, begin + static_cast<std::ptrdiff_t>(size))];
    }
  }
  return counts;
}

void CheckCounts(const ContextTrie& trie, const Tokens& window, std::uint32_t num_tokens) {
  const std::map<Tokens, int> counts = CountNgrams(window, trie.order());
  std::map<Tokens, std::uint32_t> successors, distinct;
  for (const auto& [ngram, count] : counts) {
    const Tokens history(ngram.begin(), ngram.end() - 1);
    successors[history] += static_cast<std::uint32_t>(count);
    ++distinct[history];
    std::uint32_t node = ContextTrie::kRoot;
    for (const TokenId token : ngram) node = trie.Find(node, static_cast<Symbol>(token));
    REQUIRE(node != kNoNode);
    CHECK(trie.node(node).count == static_cast<std::uint32_t>(count));
    for (Symbol word = 0; word < num_tokens; ++word) {
      Tokens longer = ngram;
      longer.push_back(static_cast<TokenId>(word));
      CHECK((trie.Find(node, word) != kNoNode) == (counts.count(longer) != 0));
      CHECK(trie.MayHave(node, word) >= (counts.count(longer) != 0));
    }
  }
  for (const auto& [history, count] : successors) {
    std::uint32_t node = ContextTrie::kRoot;
    for (const TokenId token : history) node = trie.Find(node, static_cast<Symbol>(token));
    CHECK(trie.node(node).successors == count);
    CHECK(trie.node(node).distinct == distinct.at(history));
    std::uint32_t listed = 0;
    for (std::uint32_t child = trie.node(node).first_child; child != kNoNode;
         child = trie.node(child).next) {
      CHECK(trie.node(child).parent == node);
      listed += trie.node(child).count;
    }
    CHECK(listed == count);
  }
}

TEST_CASE("context trie: counts are those of the window, as tokens come and go") {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    INFO("seed ", seed);
    Random random(seed);
    const std::uint32_t num_tokens = 2 + Below(&random, 20);
    const Tokens text = RandomText(&random, num_tokens, 300);
    ContextTrie trie(1 + static_cast<int>(seed % kMaxOrder));
    const std::size_t window = 7 + Below(&random, 80);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (trie.text().size() == window) trie.RemoveFirst();
      trie.Append(static_cast<Symbol>(text[i]));
      if (i % 37 != 0) continue;
      const std::size_t size = std::min(window, i + 1);
      const auto end = text.begin() + static_cast<std::ptrdiff_t>(i + 1);
      const Tokens kept(end - static_cast<std::ptrdiff_t>(size), end);
      CheckCounts(trie, kept, num_tokens);
      const ContextState state = trie.StateOf(kept), own = trie.StateOfText();
      REQUIRE(state.length == own.length);
      for (std::uint32_t m = 0; m < own.length; ++m) CHECK(state.nodes[m] == own.nodes[m]);
    }
    trie.Clear();
    CheckCounts(trie, {}, num_tokens);
  }
}

}  // namespace
}  // namespace lattice_bpd
