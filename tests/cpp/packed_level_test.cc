// Packed levels against the trie they were packed from, in every form that the sizes lead to.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "lattice_bpd/lm/packed_level.h"

namespace lattice_bpd {
namespace {

// A bigram trie over `num_tokens` tokens: history h has the children that `children` says.
struct Shape {
  std::uint32_t num_tokens;
  std::size_t log_probs;  // distinct values in each level, as far as its size allows
  std::size_t backoffs;
};

float ValueOf(std::size_t i, std::size_t distinct) {
  return -static_cast<float>(i % distinct) / 1024.0f;
}

Trie BigramTrie(const Shape& shape, const std::vector<std::vector<Symbol>>& children) {
  Trie trie;
  trie.vocabulary = MakeVocabulary(shape.num_tokens, {});
  trie.levels.resize(2);
  const std::uint32_t symbols = trie.vocabulary.num_symbols();
  trie.levels[0].child_begin = {0};
  for (Symbol symbol = 0; symbol < symbols; ++symbol) {
    trie.levels[0].log_prob.push_back(ValueOf(symbol, shape.log_probs));
    trie.levels[0].backoff.push_back(ValueOf(symbol + 1, shape.backoffs));
    if (symbol < children.size()) {
      const std::vector<Symbol>& words = children[symbol];
      trie.levels[1].word.insert(trie.levels[1].word.end(), words.begin(), words.end());
    }
    trie.levels[0].child_begin.push_back(static_cast<std::uint32_t>(trie.levels[1].word.size()));
  }
  for (std::size_t i = 0; i < trie.levels[1].word.size(); ++i) {
    trie.levels[1].log_prob.push_back(ValueOf(i, shape.log_probs));
  }
  ValidateTrie(trie);
  return trie;
}

std::vector<Symbol> Every(std::uint32_t step, std::uint32_t limit) {
  std::vector<Symbol> words;
  for (Symbol word = 0; word < limit; word += step) words.push_back(word);
  return words;
}

// Every record and every child range reads back as the trie has it.
void CheckRecords(const Trie& trie, int m, const PackedLevel& level) {
  const TrieLevel& own = trie.levels[m];
  std::size_t wrong = 0;
  REQUIRE(level.size() == own.size());
  for (std::uint32_t i = 0; i < own.size(); ++i) {
    wrong += level.LogProb(i) != own.log_prob[i];
    if (m > 0) wrong += level.Key(i) != own.word[i];
    wrong += level.Backoff(i) != (own.backoff.empty() ? 0.0f : own.backoff[i]);
    if (!own.child_begin.empty()) {
      wrong += level.ChildBegin(i) != own.child_begin[i];
      wrong += level.ChildBegin(i + 1) != own.child_begin[i + 1];
    }
  }
  CHECK(wrong == 0);
}

LevelForm CheckForms(const Shape& shape, const std::vector<std::vector<Symbol>>& children, int m,
                     Packing packing) {
  const Trie trie = BigramTrie(shape, children);
  const LevelStorage unigrams = PackLevel(trie, 0, packing);
  const LevelStorage bigrams = PackLevel(trie, 1, packing);
  CheckRecords(trie, 0, ViewOf(unigrams, static_cast<std::uint32_t>(trie.levels[1].size())));
  CheckRecords(trie, 1, ViewOf(bigrams, 0));
  return m == 0 ? unigrams.form : bigrams.form;
}

TEST_CASE("values: codes of 1 and 2 bytes, floats, on both sides of each limit") {
  for (const Packing packing : {Packing::kFast, Packing::kSmall}) {
    const auto bytes = [packing](std::size_t distinct, std::uint32_t num_tokens) {
      return CheckForms({num_tokens, distinct, distinct}, {{0, 1}}, 0, packing);
    };
    CHECK(bytes(1, 3000).log_prob_bytes == 1);
    CHECK(bytes(256, 3000).log_prob_bytes == 1);
    CHECK(bytes(256, 3000).backoff_bytes == 1);
    CHECK(bytes(257, 3000).log_prob_bytes == 2);
    CHECK(bytes(257, 3000).backoff_bytes == 2);
    const std::size_t most = packing == Packing::kFast ? 12288 : 65536;
    CHECK(bytes(most, 200000).log_prob_bytes == 2);
    CHECK(bytes(most + 1, 200000).log_prob_bytes == 4);
    CHECK(bytes(3000, 3000).log_prob_bytes == 4);  // a table would be larger than the floats
  }
}

TEST_CASE("keys: 2 bytes up to 65,535 symbols (0xffff stays free), then 4") {
  const auto bytes = [](std::uint32_t num_tokens) {
    return CheckForms({num_tokens, 7, 7}, {{0, num_tokens - 1, num_tokens + 2}}, 1, Packing::kFast)
        .key_bytes;
  };
  CHECK(bytes(65532) == 2);  // and <s>, </s>, <unk>: the last key is 65,534
  CHECK(bytes(65533) == 4);
  CHECK(CheckForms({100, 7, 7}, {{0}}, 0, Packing::kFast).key_bytes == 0);
}

TEST_CASE("children: 4 bytes; packed small 1 or 2 from a base for each 32 nodes, if that pays") {
  // The first history of every group of 32 has `each` children, `more` histories have all tokens.
  const auto bytes = [](std::uint32_t each, std::size_t more, Packing packing) {
    std::vector<std::vector<Symbol>> children(3000);
    for (std::size_t h = 0; h < children.size(); h += 32) children[h] = Every(1, each);
    for (std::size_t h = 33; h < 33 + more; ++h) children[h] = Every(1, 3000);
    return CheckForms({3000, 7, 7}, children, 0, packing).child_bytes;
  };
  CHECK(bytes(3, 0, Packing::kFast) == 4);
  CHECK(bytes(255, 0, Packing::kSmall) == 1);
  CHECK(bytes(3, 30, Packing::kSmall) == 1);  // one group holds its children in full
  CHECK(bytes(256, 0, Packing::kSmall) == 2);
  CHECK(bytes(256, 22, Packing::kSmall) == 4);  // more than 65,535 in one group
}

TEST_CASE("search: runs of any length and offset, words that are stored and that are not") {
  for (const std::uint32_t num_tokens : {5000u, 70000u}) {  // 2-byte and 4-byte keys
    for (std::uint32_t seed = 0; seed < 12; ++seed) {
      std::mt19937 random(seed);
      std::vector<std::vector<Symbol>> children(40);
      for (std::vector<Symbol>& words : children) {
        const auto step = static_cast<std::uint32_t>(1 + random() % 40);
        const auto length = static_cast<std::uint32_t>(random() % 300);
        words = Every(step, std::min(num_tokens, step * length));
      }
      const Trie trie = BigramTrie({num_tokens, 9, 9}, children);
      const LevelStorage storage = PackLevel(trie, 1);
      const PackedLevel level = ViewOf(storage, 0);
      std::size_t wrong = 0;
      for (std::size_t h = 0; h < children.size(); ++h) {
        const std::uint32_t begin = trie.levels[0].child_begin[h];
        const std::uint32_t end = trie.levels[0].child_begin[h + 1];
        for (Symbol word = 0; word < std::min(num_tokens, 4000u); ++word) {
          const auto& words = children[h];
          const auto at = std::lower_bound(words.begin(), words.end(), word);
          const bool there = at != words.end() && *at == word;
          const std::uint32_t index = begin + static_cast<std::uint32_t>(at - words.begin());
          wrong += level.Find(begin, end, word) != (there ? index : kNoNode);
        }
      }
      INFO("tokens ", num_tokens, " seed ", seed);
      CHECK(wrong == 0);
    }
  }
}

}  // namespace
}  // namespace lattice_bpd
