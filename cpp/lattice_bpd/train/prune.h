// Pruning finished backoff LMs.
//
// All of these keep the probabilities of the n-grams that stay and compute every backoff weight
// again, so that sums are 1; keep an n-gram whose extension stays, as its prefix or its suffix, so
// that the trie stays closed; keep all unigrams (but see PruneByVocabulary). Where no n-gram of
// the highest order stays, the LM gets a lower order.
#ifndef LATTICE_BPD_TRAIN_PRUNE_H_
#define LATTICE_BPD_TRAIN_PRUNE_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"
#include "lattice_bpd/lm/trie.h"

namespace lattice_bpd {

// What PruneToSize counts: unigrams with a probability of their own (not <s>, not unseen
// vocabulary) and all longer n-grams.
std::uint64_t CountPrunable(const Trie& trie);

// Removes n-grams whose score (prune_scores.h, raised to their extensions') is below
// ln(1 + theta): the relative rise of perplexity that one removal may cost.
// Cost: about 0.4 s for each million n-grams on one core. Throws ValueError for a negative theta.
Trie PruneByEntropy(Trie trie, double theta, int num_threads);

// The same with the threshold that leaves at most `target` n-grams (CountPrunable): ties at the
// threshold all go, so some fewer may be left. A target below the number of unigrams leaves those.
Trie PruneToSize(Trie trie, std::uint64_t target, int num_threads);

// Removes n-grams of order n whose count, estimated from the LM, is below min_counts[n - 1]:
// p(h) P(w | h) N, where 1 / N is the difference of the two smallest unigram probabilities (one
// occurrence, if both are relative frequencies). For LMs whose counts are gone; where they are
// there, count_pruning.h is exact. The entry of order 1 is not used.
// Throws ValueError where min_counts has not one entry for each order, or all unigrams are equal.
Trie PruneByEstimatedCount(Trie trie, const std::vector<std::uint64_t>& min_counts,
                           int num_threads);

// Removes n-grams with a token id that is not in `kept` (<s>, </s>, <unk> always are). Unigrams
// that go become unseen vocabulary; those that stay are scaled by a common factor to sum to 1, and
// so are the n-grams of a context that every word which stays follows. Throws ValueError where an
// id lies outside the vocabulary or no unigram stays.
Trie PruneByVocabulary(Trie trie, Span<TokenId> kept, int num_threads);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_PRUNE_H_
