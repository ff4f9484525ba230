// From counts files to the trie that counting in memory would have made of the same sequences.
#ifndef LATTICE_BPD_TRAIN_COUNT_TRIE_BUILDER_H_
#define LATTICE_BPD_TRAIN_COUNT_TRIE_BUILDER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "lattice_bpd/train/count_merger.h"
#include "lattice_bpd/train/good_turing.h"
#include "lattice_bpd/train/ngram_counts.h"

namespace lattice_bpd {

// Is called with the number of n-grams of each order before they take memory; throws to refuse.
using CheckSizes = std::function<void(const std::vector<std::uint64_t>& num_ngrams)>;

struct CountTrieOptions {
  int order = 0;

  // One for each order, or empty: n-grams that PruneByCount would remove for their counts are left
  // out while the trie is built, so that it never takes memory. Where these rise with the order,
  // PruneByCount then finds nothing to do; otherwise some n-grams are left for it.
  std::vector<std::uint64_t> min_counts;

  int threads = 1;
  CheckSizes check_sizes;
};

struct CountedNgrams {
  CountTrie trie;
  std::vector<CountOfCounts> count_of_counts;  // by level, before min_counts
};

// Merges the files twice: once to learn the sizes, once to fill the trie. All of them must have
// the same vocabulary and at least the requested order.
// Time: O(order * records * log files). Memory besides the trie: one block for each file and
// thread. Throws FormatError and IoError as the files do; ValueError where they hold no text, or
// where one order has 2^32 n-grams or more.
CountedNgrams BuildCountTrie(const CountFiles& files, const CountTrieOptions& options);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_COUNT_TRIE_BUILDER_H_
