// Continuation counts: in how many contexts an n-gram occurs, instead of how often.
#ifndef LATTICE_BPD_TRAIN_CONTINUATION_COUNTS_H_
#define LATTICE_BPD_TRAIN_CONTINUATION_COUNTS_H_

#include "lattice_bpd/train/ngram_counts.h"

namespace lattice_bpd {

// Puts N(. h w), the number of different symbols seen before the n-gram, instead of its
// count, and the sums over w instead of context_count (Kneser and Ney 1995). The highest
// order keeps its counts, and so do n-grams of two symbols and more that start with <s>, since
// nothing precedes them. An n-gram whose extensions were pruned away keeps 1.
// O(n-grams); 4 bytes for each of two levels while it runs.
void UseContinuationCounts(int num_threads, CountTrie* trie);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_CONTINUATION_COUNTS_H_
