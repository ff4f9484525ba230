// Counting and count pruning: against a map of all n-grams, and by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/count_pruning.h"
#include "lattice_bpd/train/ngram_counts.h"

namespace lattice_bpd {
namespace {

using Sequences = std::vector<std::vector<TokenId>>;
using Ngram = std::vector<std::int32_t>;
using NgramMap = std::map<Ngram, std::uint64_t>;

struct Flat {
  std::vector<TokenId> ids;
  std::vector<std::int64_t> offsets = {0};

  explicit Flat(const Sequences& sequences) {
    for (const auto& sequence : sequences) {
      ids.insert(ids.end(), sequence.begin(), sequence.end());
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
  }
  TokenSequences view() const { return {ids, offsets, false, 0}; }
};

// The definition, written down as plainly as it goes. Without the unigram of the first <s>.
NgramMap CountPlainly(const Sequences& sequences, const Vocabulary& vocabulary, std::size_t order) {
  NgramMap counts;
  for (Ngram text : sequences) {
    const auto bos = static_cast<std::int32_t>(vocabulary.bos);
    const auto eos = static_cast<std::int32_t>(vocabulary.eos);
    if (text.empty() || text.front() != bos) text.insert(text.begin(), bos);
    if (text.size() == 1 || text.back() != eos) text.push_back(eos);
    for (std::size_t begin = 0; begin < text.size(); ++begin) {
      const std::size_t longest = std::min(order, text.size() - begin);
      for (std::size_t n = begin == 0 ? 2 : 1; n <= longest; ++n) {
        ++counts[Ngram(text.begin() + begin, text.begin() + begin + n)];
      }
    }
  }
  return counts;
}

NgramMap ToMap(const CountTrie& trie) {
  NgramMap counts;
  for (int level = 0; level < trie.order(); ++level) {
    const NgramTable table = ListNgrams(trie, level);
    for (std::size_t i = 0; i < table.counts.size(); ++i) {
      const auto row = table.symbols.begin() + i * (level + 1);
      counts[Ngram(row, row + level + 1)] = table.counts[i];
    }
  }
  return counts;
}

Sequences RandomSequences(std::mt19937* random, int vocab_size) {
  Sequences sequences(1 + (*random)() % 20);
  for (auto& sequence : sequences) {
    sequence.resize((*random)() % 30);
    for (TokenId& id : sequence) {
      id = static_cast<TokenId>(((*random)() % 7) * ((*random)() % 3) % vocab_size);
    }
  }
  sequences[0].assign(500, vocab_size - 1);  // a long run of equal keys
  return sequences;
}

const Sequences kWorked = {{0, 1}, {0, 1}, {0, 2}, {1, 0}};  // a b / a b / a c / b a

}  // namespace

TEST_CASE("counting equals the plain definition, whatever the threads and the key width") {
  const SpecialIds named{0, 1, std::nullopt};
  const SpecialIds same{0, 0, std::nullopt};
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int vocab_size = seed % 3 == 0 ? 1 << 21 : 2 + static_cast<int>(seed % 11);
    const Sequences sequences = RandomSequences(&random, vocab_size);
    const Flat flat(sequences);
    const SpecialIds ids = seed % 4 == 1 ? named : seed % 4 == 2 ? same : SpecialIds{};
    const Vocabulary vocabulary = MakeVocabulary(vocab_size, ids);
    const int order = 1 + static_cast<int>(seed % kMaxOrder);
    const CountTrie trie = CountNgrams(flat.view(), vocabulary, order, 1 + seed % 5);
    CHECK(ToMap(trie) == CountPlainly(sequences, vocabulary, order));
  }
}

TEST_CASE("count pruning keeps prefixes and suffixes of what stays") {
  const Flat flat(kWorked);
  CountTrie trie = CountNgrams(flat.view(), MakeVocabulary(3, {}), 3, 1);
  // 3-grams: <s> a b 2, a b </s> 2, and four that occur once. Bigrams below 3 go, but for the
  // parts of those two: <s> a, a b, b </s>.
  PruneByCount({1, 3, 2}, 1, &trie);
  const std::int32_t bos = 3, eos = 4;
  const NgramMap expected = {{{0}, 4},      {{1}, 3},         {{2}, 1},
                             {{eos}, 4},    {{bos, 0}, 3},    {{0, 1}, 2},
                             {{1, eos}, 2}, {{bos, 0, 1}, 2}, {{0, 1, eos}, 2}};
  CHECK(ToMap(trie) == expected);
  CHECK(trie.levels[0].context_count[0] == 4);  // a: b twice, c, </s>; pruned ones counted in
}

}  // namespace lattice_bpd
