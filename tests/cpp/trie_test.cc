// The trie's invariants.
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
