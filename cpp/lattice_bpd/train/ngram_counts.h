// Counts of all n-grams of order 1 to n of a corpus, as a sorted trie.
//
// Every step of training works on this value: counting makes it (here, from sequences in memory;
// corpus_counter.h, from any number of batches), count pruning takes n-grams out, and the
// estimators (katz.h) turn it into a Trie.
#ifndef LATTICE_BPD_TRAIN_NGRAM_COUNTS_H_
#define LATTICE_BPD_TRAIN_NGRAM_COUNTS_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/lm/vocabulary.h"
#include "lattice_bpd/train/token_sequences.h"

namespace lattice_bpd {

// Level m holds the (m+1)-grams, laid out as in lm/trie.h: level 0 has one node for each symbol,
// seen or not; higher levels hold what occurs, sorted lexicographically.
struct CountLevel {
  std::vector<Symbol> word;                  // last symbol of each n-gram; empty on level 0
  std::vector<std::uint64_t> count;          // occurrences; a first <s> is not one (level 0)
  std::vector<std::uint64_t> context_count;  // occurrences that another symbol follows; empty on
                                             // the highest level. Pruning leaves it as it is
  std::vector<std::uint32_t> child_begin;    // size() + 1 entries; empty on the highest level

  std::size_t size() const { return count.size(); }
};

struct CountTrie {
  Vocabulary vocabulary;
  std::vector<CountLevel> levels;

  int order() const { return static_cast<int>(levels.size()); }
};

// Counts the n-grams of order 1 .. order of each sequence <s> w1 .. wm </s> (token_sequences.h).
// No n-gram crosses a boundary; <s> at the start is only ever a context, </s> is an event.
// num_threads of 0 means every core. The result does not depend on it.
//
// Method: every position's next (order - 1) symbols are packed into one integer key; keys are
// bucketed by the position's own symbol and sorted inside their buckets, which fit the caches.
//
// Time: O(tokens * order). Memory besides the ids and the result (20 bytes for each n-gram below
// the highest order, 12 there): 8 bytes for each token, and again for the most frequent token's
// occurrences (16 where the packed symbols need more than 64 bits: order 5 from a vocabulary of
// 2^16 on).
//
// Throws ValueError where order is not in 1..6, the sequences are bad (CheckSequences,
// CheckHasText), or one order has 2^32 n-grams or more; std::bad_alloc where memory ends.
CountTrie CountNgrams(const TokenSequences& sequences, const Vocabulary& vocabulary, int order,
                      int num_threads = 0);

// Throws ValueError where order is not in 1..6.
void CheckOrder(int order);

// Throws ValueError where a level of so many n-grams does not fit a trie.
void CheckLevelSize(int level, std::uint64_t size);

// The n-grams of a level that occur, as rows of level + 1 symbols each, sorted; and their counts.
struct NgramTable {
  std::vector<std::int32_t> symbols;  // (counts.size(), level + 1)
  std::vector<std::uint64_t> counts;
};
NgramTable ListNgrams(const CountTrie& trie, int level);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_NGRAM_COUNTS_H_
