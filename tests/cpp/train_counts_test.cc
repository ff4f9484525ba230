// Counting and count pruning: against a map of all n-grams, and by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"
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
  TokenSequences view() const { return {ids, offsets}; }
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

TEST_CASE("context counts are the sums of the children's counts") {
  const Flat flat(kWorked);
  const CountTrie trie = CountNgrams(flat.view(), MakeVocabulary(3, {}), 3, 2);
  for (int level = 0; level + 1 < trie.order(); ++level) {
    const CountLevel& contexts = trie.levels[level];
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      std::uint64_t sum = 0;
      for (std::uint32_t child = contexts.child_begin[i]; child < contexts.child_begin[i + 1];
           ++child) {
        sum += trie.levels[level + 1].count[child];
      }
      CHECK(contexts.context_count[i] == sum);
    }
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

TEST_CASE("count pruning drops orders that end up empty, and unigrams become unseen") {
  const Flat flat(kWorked);
  CountTrie trie = CountNgrams(flat.view(), MakeVocabulary(3, {}), 3, 1);
  PruneByCount({2, 3, 9}, 1, &trie);
  CHECK(trie.order() == 2);
  CHECK(ToMap(trie) == NgramMap{{{0}, 4}, {{1}, 3}, {{4}, 4}, {{3, 0}, 3}});
  CHECK(trie.levels[1].child_begin.empty());
}

TEST_CASE("bad corpora and options say what is wrong") {
  const Vocabulary vocabulary = MakeVocabulary(3, {});
  const auto message = [&](const Flat& flat, int order) -> std::string {
    try {
      CountNgrams(flat.view(), vocabulary, order, 1);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message(Flat({{0, 1}, {2, 3, 0}}), 2)
            .find("token id 3 at index 3 (sequence 1, position 1)") != std::string::npos);
  CHECK(message(Flat({{0, -1}}), 2).find("token id -1 at index 1") != std::string::npos);
  CHECK(message(Flat({}), 2).find("has no text") != std::string::npos);
  CHECK(message(Flat({{}, {}}), 2).find("has no text: 2 sequences") != std::string::npos);
  CHECK(message(Flat(kWorked), 0).find("order is 0; expected 1..6") != std::string::npos);
  CHECK(message(Flat(kWorked), 7).find("order is 7") != std::string::npos);
  Flat falling(kWorked);
  falling.offsets[2] = 1;
  CHECK(message(falling, 2).find("offsets[2] is 1, below offsets[1] = 2") != std::string::npos);
  Flat longer(kWorked);
  longer.offsets.back() = 9;
  CHECK(message(longer, 2).find("from 0 to 9; expected 0 to 8") != std::string::npos);
  CountTrie trie = CountNgrams(Flat(kWorked).view(), vocabulary, 2, 1);
  CHECK_THROWS_AS(PruneByCount({1}, 1, &trie), ValueError);
  CHECK_THROWS_AS(PruneByCount({1, 0}, 1, &trie), ValueError);
}

TEST_CASE("an exception in one task comes back, and every other task ends") {
  std::atomic<int> done{0};
  const auto task = [&](std::size_t i) {
    if (i == 3) throw std::bad_alloc();
    ++done;
  };
  CHECK_THROWS_AS(RunParallel(100, 4, task), std::bad_alloc);
  CHECK(done < 100);
  CHECK_THROWS_AS(ResolveThreads(-1), ValueError);
  CHECK(ResolveThreads(0) >= 1);
}

TEST_CASE("parts of equal weight cover everything once") {
  const std::vector<std::uint64_t> cumulative = {0, 0, 5, 6, 6, 100, 101, 101};
  for (const std::size_t parts : {1, 2, 3, 50}) {
    const std::vector<std::size_t> bounds = SplitByWeight(cumulative, parts);
    CHECK(bounds.front() == 0);
    CHECK(bounds.back() == 7);
    CHECK(bounds.size() <= parts + 1);
    CHECK(std::is_sorted(bounds.begin(), bounds.end()));
  }
}

}  // namespace lattice_bpd
