// Relative-entropy pruning scores: what the removal of each n-gram of a backoff LM would cost.
#ifndef LATTICE_BPD_TRAIN_PRUNE_SCORES_H_
#define LATTICE_BPD_TRAIN_PRUNE_SCORES_H_

#include <vector>

#include "lattice_bpd/lm/trie.h"

namespace lattice_bpd {

using NgramScores = std::vector<std::vector<double>>;  // [level][node]; level 0 is empty

// p(h w) of every n-gram in the LM itself: P(h1) P(h2 | h1) ..; a leading <s> has P(</s>).
NgramScores NgramProbs(const Trie& trie, int num_threads);

// Stolcke (1998), each n-gram alone against the whole LM. With left = 1 - sum P(w | h) and
// lower = 1 - sum P(w | h') over the stored hw, a = left / lower, a' the same without hw:
//
//   a' = (left + P(w | h)) / (lower + P(w | h'))
//   D  = -p(h) { P(w | h) [ln P(w | h') + ln a' - ln P(w | h)] + left [ln a' - ln a] }
//
// The trie must have its backoff weights. O(n-grams); 28 bytes for each while it runs.
NgramScores RelativeEntropyScores(const Trie& trie, int num_threads);

// The same where p(h) is given: probs is what NgramProbs returns (the highest level's are not
// used), of the whole LM where `trie` is only a part of it.
NgramScores RelativeEntropyScores(const Trie& trie, NgramScores probs, int num_threads);

// Raises every score to the largest of its extensions to the right (as prefix) and to the left
// (as suffix), from the highest order down: a part is then worth as much as the whole, and taking
// out all below a threshold leaves the trie closed.
void RaiseToExtensions(const Trie& trie, int num_threads, NgramScores* scores);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_PRUNE_SCORES_H_
