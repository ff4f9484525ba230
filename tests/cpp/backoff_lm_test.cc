// Queries worked by hand on the example of lm_examples.h, each expected value as the sum it is.
#include <doctest/doctest.h>

#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/lm_fst.h"
#include "lattice_bpd/lm/score_text.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

constexpr Symbol kA = 0, kB = 1, kC = 2, kBos = 3, kEos = 4, kUnk = 5;

double LnP(const BackoffLm& lm, Symbol word, const std::vector<Symbol>& history) {
  return lm.Query(lm.StateOf(history), word).TotalLogProb();
}

TEST_CASE("queries: the longest n-gram, or backoffs down to it") {
  const auto lm = ExampleLm();
  CHECK(LnP(*lm, kA, {}) == -1.0);
  CHECK(LnP(*lm, kB, {kA}) == -0.25);                      // a b
  CHECK(LnP(*lm, kC, {kA}) == -0.5 - 2.0);                 // backoff(a) + c
  CHECK(LnP(*lm, kC, {kA, kB}) == -0.125);                 // a b c
  CHECK(LnP(*lm, kA, {kA, kB}) == -0.125 - 0.25 - 1.0);    // (a b) + (b) + a
  CHECK(LnP(*lm, kEos, {kA, kB}) == -0.125 - 0.25 - 3.0);  // (a b) + (b) + </s>
  CHECK(LnP(*lm, kC, {kC, kB}) == -0.5);                   // c b is unknown: b c
  CHECK(LnP(*lm, kA, {kB, kC}) == -0.75 + 0.0 - 1.0);      // (b c) + (c) + a
  CHECK(LnP(*lm, kB, {kBos, kA}) == -0.375);               // <s> a b
  CHECK(LnP(*lm, kC, {kBos, kA}) == -1.25 - 0.5 - 2.0);    // (<s> a) + (a) + c
  CHECK(LnP(*lm, kA, {kBos}) == -0.625);                   // <s> a
  CHECK(LnP(*lm, kB, {kBos}) == -0.875 - 1.5);             // (<s>) + b
}

TEST_CASE("queries: the parts that were added up are kept apart") {
  const auto lm = ExampleLm();
  const LmStep step = lm->Query(lm->StateOf(std::vector<Symbol>{kA, kB}), kA);
  REQUIRE(step.num_backoffs == 2);
  CHECK(step.backoffs[0] == -0.125f);
  CHECK(step.backoffs[1] == -0.25f);
  CHECK(step.log_prob == -1.0f);
}

TEST_CASE("states: the longest suffix of the history that the model knows") {
  const auto lm = ExampleLm();
  const auto length = [&](const std::vector<Symbol>& history) {
    return lm->StateOf(history).length;
  };
  CHECK(length({}) == 0);
  CHECK(length({kA}) == 1);
  CHECK(length({kA, kB}) == 2);
  CHECK(length({kB, kA}) == 1);      // b a is unknown
  CHECK(length({kA, kB, kC}) == 2);  // b c
  CHECK(length({kC, kC, kA, kB}) == 2);
  CHECK(lm->StateOf(std::vector<Symbol>{kC, kA, kB}) ==
        lm->StateOf(std::vector<Symbol>{kBos, kA, kB}));
}

TEST_CASE("states: going step by step is the same as starting from the whole history") {
  const auto lm = ExampleLm();
  for (int code = 0; code < 4 * 4 * 4 * 4 * 4; ++code) {  // all histories of 5 of a, b, c, <s>
    std::vector<Symbol> history;
    LmState state;
    for (int rest = code, i = 0; i < 5; ++i, rest /= 4) {
      const Symbol word = static_cast<Symbol>(rest % 4);
      history.push_back(word);
      state = lm->Query(state, word).next;
      INFO("code ", code, " length ", i + 1);
      CHECK(state == lm->StateOf(history));
    }
  }
}

TEST_CASE("contexts: <s> is seen where the context is shorter than a history") {
  const auto lm = ExampleLm();
  const auto state = [&](const std::vector<TokenId>& context, bool bos) {
    return lm->StateOfContext(context, bos);
  };
  CHECK(state({}, true) == lm->StateOf(std::vector<Symbol>{kBos}));
  CHECK(state({}, false) == LmState{});
  CHECK(state({0}, true) == lm->StateOf(std::vector<Symbol>{kBos, kA}));
  CHECK(state({0}, false) == lm->StateOf(std::vector<Symbol>{kA}));
  CHECK(state({2, 0, 1}, true) == lm->StateOf(std::vector<Symbol>{kA, kB}));
  CHECK(state({0, 3}, true) == lm->StateOf(std::vector<Symbol>{kBos, kA, kUnk}));
  CHECK_THROWS_WITH_AS(state({-1, 0, 0, 0}, true), doctest::Contains("position 0"), ValueError);
}

TEST_CASE("contexts: a named <s> is not doubled") {
  const Vocabulary vocabulary = MakeVocabulary(4, {3, std::nullopt, std::nullopt});
  std::vector<Ngram> ngrams = ExampleNgrams();
  ngrams.push_back({{kBos, kBos}, -4.0f, -0.5f});  // would be used if <s> occurred twice
  const auto lm = BackoffLm::FromTrie(BuildTrie(vocabulary, ListsOf(3, ngrams)));
  CHECK(lm->StateOfContext(std::vector<TokenId>{3}, true).length == 1);
  CHECK(lm->StateOfContext(std::vector<TokenId>{3}, true) == lm->StateOfContext({}, true));
  CHECK(lm->StateOfContext(std::vector<TokenId>{3, 0}, true) ==
        lm->StateOfContext(std::vector<TokenId>{0}, true));
}

TEST_CASE("text: one number for each token and one for </s>") {
  const auto lm = ExampleLm();
  const std::vector<TokenId> text = {0, 1, 2, 2};
  const std::vector<double> expected = {-0.625, -0.375, -0.125, -0.75 + 0.0 - 2.0, 0.0 - 3.0};
  CHECK(ScoreText(*lm, text, true, true) == expected);
  CHECK(ScoreText(*lm, text, false, false) ==
        std::vector<double>{-1.0, -0.25, -0.125, -0.75 + 0.0 - 2.0});
  CHECK(ScoreText(*lm, {}, true, true) == std::vector<double>{-0.875 - 3.0});
  CHECK(ScoreText(*lm, {}, true, false).empty());
  CHECK(LogProb(*lm, 2, std::vector<TokenId>{0, 1}, true) == -0.125);
  CHECK_THROWS_AS(ScoreText(*lm, std::vector<TokenId>{0, 7}, true, false), ValueError);
  CHECK_THROWS_AS(LogProb(*lm, -1, {}, true), ValueError);
}

TEST_CASE("order 1: no history, no backoff") {
  std::vector<Ngram> unigrams = ExampleNgrams();
  unigrams.resize(6);
  for (Ngram& unigram : unigrams) unigram.backoff = 0.0f;
  std::vector<NgramList> lists = ListsOf(1, unigrams);
  Trie trie = BuildTrie(MakeVocabulary(3, {}), lists);
  const auto lm = BackoffLm::FromTrie(trie);
  CHECK(lm->order() == 1);
  CHECK(LnP(*lm, kB, {kA, kC}) == -1.5);
  CHECK(lm->StateOfContext(std::vector<TokenId>{0, 1}, true) == LmState{});
}

TEST_CASE("FST states: the empty history, then histories of each length in trie order") {
  const auto lm = ExampleLm();
  CHECK(FstState(*lm, {}) == 0);
  CHECK(FstState(*lm, lm->StateOf(std::vector<Symbol>{kA})) == 1);
  CHECK(FstState(*lm, lm->StateOf(std::vector<Symbol>{kEos})) == 5);
  CHECK(FstState(*lm, lm->StateOf(std::vector<Symbol>{kA, kB})) == 7);  // 1 + 6 unigrams
  CHECK(FailureLabel(*lm) == 7);  // after the labels 1..6 of all symbols
}

TEST_CASE("FST bytes: expanding is refused where it cannot fit") {
  const auto lm = ExampleLm();
  CHECK_FALSE(LmToFstBytes(*lm, {}, {true, true}).empty());
  Trie wide;
  wide.vocabulary = MakeVocabulary(1u << 15, {});
  wide.levels.resize(2);
  const std::size_t size = wide.vocabulary.num_symbols();
  wide.levels[0].log_prob.assign(size, -1.0f);
  wide.levels[0].backoff.assign(size, 0.0f);
  wide.levels[0].child_begin.assign(size + 1, 0);
  const auto big = BackoffLm::FromTrie(std::move(wide));
  CHECK_THROWS_WITH_AS(LmToFstBytes(*big, {}, {true, false}), doctest::Contains("too many"),
                       ValueError);
}

}  // namespace
}  // namespace lattice_bpd
