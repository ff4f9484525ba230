// Counting out of core: the same as in memory, whatever the budget, batches and threads.
#include "lattice_bpd/train/corpus_counter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "counting_examples.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
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

TEST_CASE("out of core equals in memory, bit for bit") {
  std::uint64_t most_runs = 0;
  for (unsigned seed = 0; seed < 36; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int vocab_size = seed % 6 == 0 ? 100000 : 3 + static_cast<int>(seed % 40);
    const SpecialIds named{0, 1, std::nullopt};
    const Vocabulary vocabulary = MakeVocabulary(vocab_size, seed % 2 == 0 ? SpecialIds{} : named);
    const Sequences sequences = LongSequences(&random, vocab_size);
    const int order = 1 + static_cast<int>(seed / 2 % kMaxOrder);
    CorpusCounter counter(vocabulary, SmallBudget(order, vocabulary.num_symbols(), 1 + seed % 3));
    AddInPieces(sequences, &random, &counter);
    most_runs = std::max(most_runs, counter.progress().num_runs);
    const Flat flat(sequences);
    const CountedNgrams counted = counter.Finish({});
    const CountTrie expected = CountNgrams(flat.view(), vocabulary, order, 1);
    CHECK(Equal(counted.trie, expected));
    for (int level = 0; level < order; ++level) {
      CHECK(counted.count_of_counts[level] == CountCounts(expected.levels[level]));
    }
  }
  CHECK(most_runs > 5);  // more were merged early
}

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

TEST_CASE("saved counts: merged in any order, gone on from, cut to a lower order") {
  TemporaryFolder folder;
  std::mt19937 random(7);
  const Vocabulary vocabulary = MakeVocabulary(300, {});
  Sequences all;
  std::vector<std::string> paths;
  for (int shard = 0; shard < 3; ++shard) {
    const Sequences sequences = LongSequences(&random, 300);
    all.insert(all.end(), sequences.begin(), sequences.end());
    CorpusCounter counter(vocabulary, SmallBudget(3 + shard, vocabulary.num_symbols(), 1));
    if (shard == 1) counter.Add(Flat({}).view());
    AddInPieces(sequences, &random, &counter);
    paths.push_back(folder.File(std::to_string(shard)));
    counter.Save(paths.back(), "shard\n");
    if (shard == 2) {  // counting goes on after Save, from the file
      AddInPieces(all, &random, &counter);
      counter.Save(folder.File("again"), "");
    }
  }
  const Flat flat(all);
  for (int order = 1; order <= 3; ++order) {
    const CountTrie expected = CountNgrams(flat.view(), vocabulary, order, 1);
    std::rotate(paths.begin(), paths.begin() + 1, paths.end());
    CorpusCounter counter(vocabulary, SmallBudget(order, vocabulary.num_symbols(), 2));
    for (const std::string& path : paths) counter.AddFile(OpenCounts(path));
    CHECK(Equal(counter.Finish({}).trie, expected));
  }
  CHECK(OpenCounts(paths[0])->sources() == "shard\n");
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

TEST_CASE("an interrupt leaves neither files nor a changed output") {
  TemporaryFolder folder;
  std::mt19937 random(3);
  const Vocabulary vocabulary = MakeVocabulary(40, {});
  const Sequences sequences = LongSequences(&random, 40);
  for (int calls = 0; calls < 60; calls += 3) {
    CountingOptions options = SmallBudget(3, vocabulary.num_symbols(), 1);
    options.temporary_folder = folder.path();
    int left = calls;
    const auto run = [&] {
      const InterruptScope scope(
          [&] {
            if (left-- == 0) throw std::runtime_error("stop");
          },
          std::chrono::milliseconds(0));
      CorpusCounter counter(vocabulary, options);
      AddInPieces(sequences, &random, &counter);
      counter.Finish({});
      counter.Save(folder.File("out"), "");
    };
    CHECK_THROWS_WITH(run(), "stop");
    CHECK(NamesIn(folder.path()).empty());
  }
}

TEST_CASE("wrong budgets, batches and files are refused") {
  TemporaryFolder folder;
  const Vocabulary vocabulary = MakeVocabulary(9, {});
  CountingOptions options = SmallBudget(3, vocabulary.num_symbols(), 1);
  CorpusCounter counter(vocabulary, options);
  const Flat flat({{1, 2}});
  TokenSequences continued = flat.view();
  continued.continues = true;
  CHECK_THROWS_WITH_AS(counter.Add(continued), doctest::Contains("left none open"), ValueError);
  counter.Add(flat.view());
  CHECK_THROWS_WITH_AS(counter.Add(Flat({{1}, {9}}).view()),
                       doctest::Contains("token id 9 at index 1 (sequence 1, position 0)"),
                       ValueError);
  counter.Save(folder.File("counts"), "");
  const auto add = [&](const Vocabulary& other, int order) {
    CountingOptions others = SmallBudget(order, other.num_symbols(), 1);
    CorpusCounter(other, others).AddFile(OpenCounts(folder.File("counts")));
  };
  CHECK_THROWS_WITH_AS(add(MakeVocabulary(8, {}), 3), doctest::Contains("vocabulary is of size 9"),
                       ValueError);
  CHECK_THROWS_WITH_AS(add(vocabulary, 4), doctest::Contains("orders up to 3"), ValueError);
  options.memory = 1000;
  CHECK_THROWS_WITH_AS(CorpusCounter(vocabulary, options), doctest::Contains("at least 65920"),
                       ValueError);
  options.memory = 1 << 20;
  options.temporary_folder = folder.File("missing");
  CorpusCounter nowhere(vocabulary, options);
  std::mt19937 random(1);
  CHECK_THROWS_AS(AddInPieces(Sequences(50, LongSequences(&random, 9)[0]), &random, &nowhere),
                  IoError);
  CorpusCounter empty(vocabulary, SmallBudget(3, vocabulary.num_symbols(), 1));
  CHECK_THROWS_WITH_AS(empty.Finish({}), doctest::Contains("has no text"), ValueError);
}

}  // namespace lattice_bpd
