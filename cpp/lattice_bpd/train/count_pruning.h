// Takes rare n-grams out of a count trie.
#ifndef LATTICE_BPD_TRAIN_COUNT_PRUNING_H_
#define LATTICE_BPD_TRAIN_COUNT_PRUNING_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/train/marked_nodes.h"
#include "lattice_bpd/train/ngram_counts.h"

namespace lattice_bpd {

// Removes every n-gram of order n whose count is below min_counts[n - 1], unless it is the prefix
// or the suffix of one that stays: the trie stays closed under both. </s> always stays. A removed
// unigram keeps its node, with count 0, and becomes unseen vocabulary.
// context_count is not changed: it says how often a context was followed by anything at all, so
// that what is removed becomes mass for the backoff (the paper takes 1, 1, 2, 4: cutoffs of 2
// for 3-grams and 4 for 4-grams).
//
// An empty min_counts changes nothing. Levels that end up empty at the top are dropped.
// O(n-grams); 5 bytes for each while it runs.
// Throws ValueError where min_counts has not one entry of at least 1 for each order.
void PruneByCount(const std::vector<std::uint64_t>& min_counts, int num_threads, CountTrie* trie);

// The two steps of PruneByCount, for callers that change counts in between: what stays, for each
// level (nothing at all where every n-gram does), and the removal of the rest.
std::vector<Marks> MarkFrequentNgrams(const std::vector<std::uint64_t>& min_counts, int num_threads,
                                      const CountTrie& trie);
void KeepMarkedNgrams(const std::vector<Marks>& stays, CountTrie* trie);

// Drops empty levels at the top: a corpus of short sequences has no n-grams of the highest order.
void DropEmptyLevels(CountTrie* trie);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_COUNT_PRUNING_H_
