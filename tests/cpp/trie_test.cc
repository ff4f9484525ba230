// The trie's invariants, and the insertion of missing suffixes through all levels.
#include <doctest/doctest.h>

#include <limits>
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
