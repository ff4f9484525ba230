// The cache LM: its counts in a sliding window, its weights, and probabilities that sum to 1.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/draft_batch.h"
#include "random_caches.h"

namespace lattice_bpd {
namespace {

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

TEST_CASE("cache: counts are those of the window, as tokens come and go") {
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

TEST_CASE("cache: what has left the window is ruled out again where it can be") {
  ContextTrie trie(2);
  for (int i = 0; i < 3; ++i) {  // a b, then a c
    trie.Append(0);
    trie.Append(1);
  }
  const std::uint32_t a = trie.Find(ContextTrie::kRoot, 0);
  CHECK(trie.MayHave(a, 1));
  CHECK_FALSE(trie.MayHave(a, 2));
  for (int i = 0; i < 3; ++i) {
    trie.Append(0);
    trie.Append(2);
    trie.RemoveFirst();
    trie.RemoveFirst();
  }
  REQUIRE(trie.Find(ContextTrie::kRoot, 0) == a);
  CHECK(trie.MayHave(a, 2));
  CHECK_FALSE(trie.MayHave(a, 1));
}

TEST_CASE("cache: a worked example") {
  //   text: 20 times a b, then a c. After "a" come 20 b and a c, after "b a" 19 b and a c
  Tokens text;
  for (int i = 0; i < 20; ++i) text.insert(text.end(), {0, 1});
  text.insert(text.end(), {0, 2});
  ContextNgram cache(3, 3, 100);
  cache.Update(text, nullptr, true);
  REQUIRE(cache.IsActive(false));
  const std::vector<double> weights = cache.weights();
  REQUIRE(weights.size() == 2);
  const double one = weights[0] * 21 / (21 + 2);  // 21 successors, 2 of them different
  const double two = weights[1] * 20 / (20 + 2);
  const double shorter = (1 - one) / 3 + one * 20 / 21;
  const double expected = (1 - two) * shorter + two * 19 / 20;
  CHECK(cache.LogProb(1, Tokens{2, 1, 0}, nullptr, true) == doctest::Approx(std::log(expected)));
  CHECK(cache.LogProb(1, Tokens{2}, nullptr, true) == doctest::Approx(std::log(1.0 / 3)));
}

TEST_CASE("cache: log probabilities are those of the definition, and sum to 1") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    INFO("seed ", seed);
    Random random(seed);
    ContextNgram cache(9, 1 + static_cast<int>(seed % kMaxOrder), 500);
    std::shared_ptr<const BackoffLm> lm;
    if (seed % 3 != 0) lm = RandomLm(&random, 9, 9, 1 + static_cast<int>(seed % 5), 60, false);
    const Tokens text = RandomText(&random, 9, 200);
    cache.Update(text, lm.get(), true);
    const CacheOracle oracle(text, cache, lm.get(), true);
    const Tokens context = RandomText(&random, 9, Below(&random, 6));
    double total = 0.0;
    for (TokenId token = 0; token < 9; ++token) {
      const double log_prob = cache.LogProb(token, context, lm.get(), true);
      CHECK(log_prob == doctest::Approx(oracle.LogProb(context, token)));
      total += std::exp(log_prob);
    }
    if (lm == nullptr) CHECK(total == doctest::Approx(1.0));
  }
}

Tokens Repeat(const Tokens& period, std::size_t size) {
  Tokens text;
  while (text.size() < size) text.push_back(period[text.size() % period.size()]);
  return text;
}

TEST_CASE("cache: weights rise in a loop and fall on random text") {
  ContextNgram cache(1000, 4, 4096);
  cache.Update(Repeat({5, 9, 700, 3, 12}, 200), nullptr, true);
  for (const double weight : cache.weights()) CHECK(weight > 0.6);
  CHECK(cache.IsActive(false));
  Random random(1);
  Tokens noise(20000);  // of few tokens, so that histories of all lengths match
  for (TokenId& token : noise) token = static_cast<TokenId>(Below(&random, 50));
  cache.Update(noise, nullptr, true);
  for (const double weight : cache.weights()) CHECK(weight < 0.05);
  CHECK_FALSE(cache.IsActive(false));
  cache.Clear();
  CHECK(cache.num_tokens() == 0);
  CHECK(cache.weights() == std::vector<double>(3, ContextNgram::kFirstWeight));
}

TEST_CASE("cache: pieces of a text do as the whole") {
  Random random(2);
  const Tokens text = RandomText(&random, 12, 700);
  const auto lm = RandomLm(&random, 12, 12, 5, 200, false);
  ContextNgram whole(12, 4, 64), pieces(12, 4, 64);
  whole.Update(text, lm.get(), true);
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = std::min<std::size_t>(1 + Below(&random, 9), text.size() - i);
    pieces.Update(Span<TokenId>(text).Slice(i, i + size), lm.get(), true);
    i += size;
  }
  CHECK(whole.num_tokens() == 64);
  CHECK(pieces.weights() == whole.weights());
  CHECK(pieces.LogProb(3, text, lm.get(), true) == whole.LogProb(3, text, lm.get(), true));
}

TEST_CASE("cache: searches on one thread, updates on another") {
  Random random(4);
  ContextNgram cache(40, 4, 64);
  const Tokens text = RandomText(&random, 40, 4000);
  Sausage lattice;
  while (lattice.num_slots() != 5) lattice = RandomLattice(&random, 40, 16);
  const std::vector<Sausage> lattices = {lattice, lattice};
  const std::vector<std::int64_t> offsets = {0, 3, 6};
  const std::vector<const ContextNgram*> caches = {&cache, &cache};
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::size_t i = 0; i < text.size(); i += 8) {
      cache.Update(Span<TokenId>(text).Slice(i, i + 8), nullptr, true);
    }
    done = true;
  });
  while (!done) {
    const DraftBatch batch = FindDraftBatch(
        lattices, nullptr, {Span<TokenId>(text).Slice(0, 6), offsets, true, caches}, {4, 1.0}, 2);
    CHECK(batch.counts == std::vector<std::int32_t>{4, 4});
  }
  writer.join();
}

TEST_CASE("cache: errors") {
  CHECK_THROWS_WITH_AS(ContextNgram(0, 4, 100), doctest::Contains("vocab_size is 0"), ValueError);
  CHECK_THROWS_WITH_AS(ContextNgram(9, 0, 100), doctest::Contains("order is 0; expected 1..6"),
                       ValueError);
  CHECK_THROWS_WITH_AS(ContextNgram(9, 7, 100), doctest::Contains("order is 7"), ValueError);
  CHECK_THROWS_WITH_AS(ContextNgram(9, 4, 15), doctest::Contains("max_tokens is 15; expected 16.."),
                       ValueError);
  ContextNgram cache(9, 4, 100);
  CHECK_THROWS_WITH_AS(cache.Update(Tokens{1, 9}, nullptr, true),
                       doctest::Contains("token id 9 at position 1; expected 0..8"), ValueError);
  CHECK(cache.num_tokens() == 0);
  CHECK_THROWS_WITH_AS(cache.LogProb(-1, {}, nullptr, true), doctest::Contains("token id -1"),
                       ValueError);
  const auto lm = ExampleLm();
  CHECK_THROWS_WITH_AS(cache.Update(Tokens{1}, lm.get(), true),
                       doctest::Contains("vocabulary of 9 tokens, the LM one of 3"), ValueError);
}

}  // namespace
}  // namespace lattice_bpd
