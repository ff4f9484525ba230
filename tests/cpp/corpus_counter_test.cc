// Counting out of core: minimum counts and large counts; test_counting.py has the rest.
#include "lattice_bpd/train/corpus_counter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "counting_examples.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/count_pruning.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

CountingOptions SmallBudget(int order, std::uint32_t num_symbols, unsigned threads) {
  CountingOptions options;
  options.order = order;
  options.memory = (1 << 16) + 32 * std::uint64_t{num_symbols};
  options.threads = static_cast<int>(threads);
  return options;
}

// Adds each sequence in one batch, or in pieces of random length.
void AddInPieces(const Sequences& sequences, std::mt19937* random, CorpusCounter* counter) {
  for (const auto& sequence : sequences) {
    std::size_t at = 0;
    bool continues = false;
    while (continues || at < sequence.size() || sequence.empty()) {
      const std::size_t size = std::min<std::size_t>(sequence.size() - at, (*random)() % 5000);
      const std::vector<TokenId> ids(sequence.begin() + at, sequence.begin() + at + size);
      const std::vector<std::int64_t> offsets = {0, static_cast<std::int64_t>(size)};
      at += size;
      const bool last = at == sequence.size();
      counter->Add({ids, offsets, continues, last ? std::size_t{0} : 1});
      if (last) break;
      continues = true;
    }
  }
}

}  // namespace

TEST_CASE("min_counts while merging leaves what pruning afterwards leaves") {
  for (unsigned seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Vocabulary vocabulary = MakeVocabulary(50, {});
    const Sequences sequences = LongSequences(&random, 50);
    std::vector<std::uint64_t> min_counts(4);
    for (std::uint64_t& count : min_counts) count = 1 + random() % 40;
    CorpusCounter counter(vocabulary, SmallBudget(4, vocabulary.num_symbols(), 2));
    AddInPieces(sequences, &random, &counter);
    CountedNgrams counted = counter.Finish(min_counts);
    const Flat flat(sequences);
    CountTrie expected = CountNgrams(flat.view(), vocabulary, 4, 1);
    for (int level = 0; level < 4; ++level) {
      CHECK(counted.count_of_counts[level] == CountCounts(expected.levels[level]));
    }
    PruneByCount(min_counts, 1, &expected);
    PruneByCount(min_counts, 1, &counted.trie);
    CHECK(Equal(counted.trie, expected));
  }
}

TEST_CASE("counts of 2^40 and more add up") {
  TemporaryFolder folder;
  const Vocabulary vocabulary = MakeVocabulary(1 << 21, {});
  const CountingOptions options = SmallBudget(6, vocabulary.num_symbols(), 1);
  const TokenId last = (1 << 21) - 1;
  CorpusCounter counter(vocabulary, options);
  counter.Add(Flat({{last, last, last, last, last, last, last}}).view());
  counter.Save(folder.File("0"), "");
  for (int i = 0; i < 41; ++i) {  // each file holds twice the one before
    CorpusCounter doubled(vocabulary, options);
    doubled.AddFile(OpenCounts(folder.File(std::to_string(i % 2))));
    doubled.AddFile(OpenCounts(folder.File(std::to_string(i % 2))));
    doubled.Save(folder.File(std::to_string((i + 1) % 2)), "");
  }
  CorpusCounter result(vocabulary, options);
  result.AddFile(OpenCounts(folder.File("1")));
  const CountTrie trie = result.Finish({}).trie;
  CHECK(trie.levels[0].count[last] == std::uint64_t{7} << 41);
  CHECK(*std::max_element(trie.levels[5].count.begin(), trie.levels[5].count.end()) ==
        std::uint64_t{2} << 41);
}

}  // namespace lattice_bpd
