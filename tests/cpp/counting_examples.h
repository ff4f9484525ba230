// Corpora for tests of counting, and the counts files they become.
#ifndef LATTICE_BPD_TESTS_COUNTING_EXAMPLES_H_
#define LATTICE_BPD_TESTS_COUNTING_EXAMPLES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lattice_bpd/train/count_file.h"
#include "lattice_bpd/train/ngram_counts.h"

namespace lattice_bpd {

using Sequences = std::vector<std::vector<TokenId>>;

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

// Some 30,000 tokens in sequences of 0 to 20,000, frequent ids and rare ones.
inline Sequences LongSequences(std::mt19937* random, int vocab_size) {
  Sequences sequences;
  for (const std::size_t length : {20000, 9000, 1, 0, 300, 2}) {
    std::vector<TokenId> ids(length);
    for (TokenId& id : ids) {
      const unsigned spread = 1 + (*random)() % static_cast<unsigned>(vocab_size);
      id = static_cast<TokenId>((*random)() % spread);
    }
    sequences.push_back(ids);
  }
  sequences[1].assign(9000, vocab_size - 1);  // a long run of equal keys
  std::shuffle(sequences.begin(), sequences.end(), *random);
  return sequences;
}

inline bool Equal(const CountTrie& a, const CountTrie& b) {
  const auto equal = [](const CountLevel& x, const CountLevel& y) {
    return x.word == y.word && x.count == y.count && x.context_count == y.context_count &&
           x.child_begin == y.child_begin;
  };
  return std::equal(a.levels.begin(), a.levels.end(), b.levels.begin(), b.levels.end(), equal);
}

inline std::shared_ptr<const CountFile> OpenCounts(const std::string& path) {
  return std::make_shared<const CountFile>(FileReader::Open(path));
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_COUNTING_EXAMPLES_H_
