// The trie's invariants, the builder, and the insertion of missing suffixes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/trie_builder.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

Trie ExampleTrie() { return BuildTrie(MakeVocabulary(3, {}), ListsOf(3, ExampleNgrams())); }

std::string MessageOf(const Trie& trie) {
  try {
    ValidateTrie(trie);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

double TotalLogProb(const BackoffLm& lm, const std::vector<Symbol>& history, Symbol word) {
  return lm.Query(lm.StateOf(history), word).TotalLogProb();
}

TEST_CASE("vocabulary: special symbols come after the token ids unless they are named") {
  const Vocabulary plain = MakeVocabulary(10, {});
  CHECK(plain.bos == 10);
  CHECK(plain.eos == 11);
  CHECK(plain.unk == 12);
  CHECK(plain.num_symbols() == 13);
  const Vocabulary named = MakeVocabulary(10, {7, std::nullopt, 0});
  CHECK(named.bos == 7);
  CHECK(named.eos == 10);
  CHECK(named.unk == 0);
  CHECK(named.num_symbols() == 11);
  CHECK(named.is_token(9));
  CHECK_FALSE(named.is_token(10));
  CHECK(MakeVocabulary(10, {3, 3, std::nullopt}).num_symbols() == 11);  // one id for both ends
}

TEST_CASE("vocabulary: sizes and ids out of range") {
  CHECK_THROWS_AS(MakeVocabulary(0, {}), ValueError);
  CHECK_THROWS_AS(MakeVocabulary((1u << 21) + 1, {}), ValueError);
  CHECK_NOTHROW(MakeVocabulary(1u << 21, {}));
  CHECK_THROWS_AS(MakeVocabulary(3, {3, std::nullopt, std::nullopt}), ValueError);
  CHECK_THROWS_AS(MakeVocabulary(3, {std::nullopt, -1, std::nullopt}), ValueError);
  CHECK_THROWS_AS(MakeVocabulary(3, {1, std::nullopt, 1}), ValueError);
  CHECK_THROWS_AS(MakeVocabulary(3, {std::nullopt, 2, 2}), ValueError);
}

TEST_CASE("builder: the example's levels as the header samples them") {
  const Trie trie = ExampleTrie();
  REQUIRE(trie.order() == 3);
  CHECK(trie.levels[0].child_begin == std::vector<std::uint32_t>{0, 1, 2, 2, 3, 3, 3});
  CHECK(trie.levels[1].word == std::vector<Symbol>{1, 2, 0});  // a b, b c, <s> a
  CHECK(trie.levels[1].log_prob == std::vector<float>{-0.25f, -0.5f, -0.625f});
  CHECK(trie.levels[1].backoff == std::vector<float>{-0.125f, -0.75f, -1.25f});
  CHECK(trie.levels[1].child_begin == std::vector<std::uint32_t>{0, 1, 1, 2});
  CHECK(trie.levels[2].word == std::vector<Symbol>{2, 1});  // a b c, <s> a b
  CHECK(MessageOf(trie) == "");
}

TEST_CASE("builder: the order of the lists does not matter") {
  const Trie sorted = ExampleTrie();
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::vector<Ngram> ngrams = ExampleNgrams();
    std::shuffle(ngrams.begin(), ngrams.end(), std::mt19937(seed));
    const Trie trie = BuildTrie(MakeVocabulary(3, {}), ListsOf(3, ngrams));
    INFO("seed ", seed);
    for (int m = 0; m < 3; ++m) {
      CHECK(trie.levels[m].word == sorted.levels[m].word);
      CHECK(trie.levels[m].log_prob == sorted.levels[m].log_prob);
      CHECK(trie.levels[m].backoff == sorted.levels[m].backoff);
      CHECK(trie.levels[m].child_begin == sorted.levels[m].child_begin);
    }
  }
}

TEST_CASE("builder: doubled n-grams and missing histories name their source") {
  std::vector<Ngram> doubled = ExampleNgrams();
  doubled.push_back({{0, 1}, -1.0f, 0.0f});  // the fourth bigram
  const auto source = [](const std::vector<Ngram>& ngrams) -> std::uint64_t {
    try {
      BuildTrie(MakeVocabulary(3, {}), ListsOf(3, ngrams));
    } catch (const NgramListError& error) {
      return error.source();
    }
    return 0;
  };
  const std::uint64_t index = source(doubled);
  CHECK((index == 1 || index == 4));
  std::vector<Ngram> orphan = ExampleNgrams();
  orphan.push_back({{2, 1, 0}, -1.0f, 0.0f});  // the third trigram; c b is no bigram
  CHECK(source(orphan) == 3);
}

TEST_CASE("builder: a missing suffix gets its backed-off probability, nothing else changes") {
  // c b a has the suffix b a, which is not given: ln P(a | b) = backoff(b) + ln P(a) = -.25 - 1.
  std::vector<Ngram> ngrams = ExampleNgrams();
  ngrams.push_back({{2, 1}, -0.5f, -0.375f});
  ngrams.push_back({{2, 1, 0}, -0.875f, 0.0f});
  const auto lm = BackoffLm::FromTrie(BuildTrie(MakeVocabulary(3, {}), ListsOf(3, ngrams)));
  CHECK(lm->levels()[1].size() == 5);  // a b, b a (inserted), b c, c b, <s> a
  CHECK(lm->StateOf(std::vector<Symbol>{1, 0}).length == 2);
  CHECK(TotalLogProb(*lm, {1}, 0) == -0.25 - 1.0);
  CHECK(TotalLogProb(*lm, {2, 1}, 0) == -0.875);
  CHECK(TotalLogProb(*lm, {1, 0}, 1) == 0.0 - 0.25);  // after b a: as after a alone
  CHECK(TotalLogProb(*lm, {1, 0}, 2) == 0.0 - 0.5 - 2.0);
}

TEST_CASE("builder: suffixes of inserted suffixes, through all levels") {
  std::vector<Ngram> ngrams = {
      {{0}, -1.0f, -0.5f},    {{1}, -1.5f, -0.25f},         {{2}, -2.0f, -2.0f},
      {{3}, -99.0f, 0.0f},    {{4}, -3.0f, 0.0f},           {{5}, -50.0f, 0.0f},
      {{0, 1}, -0.5f, -1.0f}, {{0, 1, 2}, -0.25f, -0.125f}, {{0, 1, 2, 1}, -0.0625f, 0.0f}};
  const auto lm = BackoffLm::FromTrie(BuildTrie(MakeVocabulary(3, {}), ListsOf(4, ngrams)));
  // Inserted: b c b (third order), then b c and c b (second).
  CHECK(lm->levels()[1].size() == 3);
  CHECK(lm->levels()[2].size() == 2);
  CHECK(TotalLogProb(*lm, {1, 2}, 1) == -2.0 - 1.5);
  CHECK(TotalLogProb(*lm, {1}, 2) == -0.25 - 2.0);
  CHECK(TotalLogProb(*lm, {0, 1, 2}, 0) == -0.125 + 0.0 - 2.0 - 1.0);
  CHECK(lm->StateOf(std::vector<Symbol>{0, 1, 2, 1}).length == 3);  // b c b
}

TEST_CASE("validation: every broken invariant is named") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto broken = [](auto change) {
    Trie trie = ExampleTrie();
    change(&trie);
    return MessageOf(trie);
  };
  CHECK(Contains(broken([](Trie* t) { t->levels.clear(); }), "order is 0"));
  CHECK(Contains(broken([](Trie* t) { t->levels.resize(7); }), "order is 7"));
  CHECK(Contains(broken([](Trie* t) { t->levels[1].word.pop_back(); }), "disagree in size"));
  CHECK(Contains(broken([](Trie* t) { t->levels[1].backoff.clear(); }), "disagree in size"));
  CHECK(Contains(broken([](Trie* t) { t->levels[2].backoff = {0, 0}; }), "disagree in size"));
  CHECK(Contains(broken([](Trie* t) { t->vocabulary.vocab_size = 9; }), "unigrams"));
  CHECK(Contains(broken([](Trie* t) { t->levels[1].log_prob[2] = 0.5f; }), "log probability"));
  CHECK(Contains(broken([](Trie* t) { t->levels[0].log_prob[0] = kNan; }), "log probability"));
  CHECK(
      Contains(broken([](Trie* t) { t->levels[2].log_prob[0] = -kInfinity; }), "log probability"));
  CHECK(Contains(broken([](Trie* t) { t->levels[0].backoff[1] = kInfinity; }), "backoff"));
  CHECK(Contains(broken([](Trie* t) { t->levels[0].backoff[1] = kNan; }), "backoff"));
  CHECK(Contains(broken([](Trie* t) { t->levels[1].child_begin.back() = 1; }), "do not cover"));
  CHECK(Contains(broken([](Trie* t) { t->levels[0].child_begin[3] = 1; }), "decrease"));
  CHECK(Contains(broken([](Trie* t) { t->levels[1].word[0] = 6; }), "sorted and distinct"));
  Trie unsorted = ExampleTrie();
  unsorted.levels[0].child_begin = {0, 2, 2, 2, 3, 3, 3};
  unsorted.levels[1].word = {2, 1, 0};
  CHECK(Contains(MessageOf(unsorted), "sorted and distinct"));
}

TEST_CASE("an LM refuses a trie without its suffixes") {
  Trie trie = ExampleTrie();
  trie.levels[1].word[1] = 0;  // b c becomes b a: a b c has no suffix any more
  CHECK_THROWS_WITH_AS(BackoffLm::FromTrie(trie), doctest::Contains("suffix is missing"),
                       ValueError);
}

}  // namespace
}  // namespace lattice_bpd
