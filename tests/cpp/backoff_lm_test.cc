// Queries worked by hand on the example of lm_examples.h, each expected value as the sum it is; the
// invariants of its trie.
#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

constexpr Symbol kA = 0, kB = 1, kC = 2, kBos = 3, kEos = 4, kUnk = 5;

double LnP(const BackoffLm& lm, Symbol word, const std::vector<Symbol>& history) {
  return lm.Query(lm.StateOf(history), word).TotalLogProb();
}

Trie ExampleTrie() { return BuildTrie(MakeVocabulary(3, {}), ListsOf(3, ExampleNgrams())); }

std::string MessageOf(const Trie& trie) {
  try {
    ValidateTrie(trie);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
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

}  // namespace
}  // namespace lattice_bpd
