// Backoff weights that make each context of a Trie sum to 1.
//
// For any model whose stored log probabilities are fixed: Katz and the other estimators end with
// it, and so does every pruning.
#ifndef LATTICE_BPD_TRAIN_BACKOFF_WEIGHTS_H_
#define LATTICE_BPD_TRAIN_BACKOFF_WEIGHTS_H_

#include <cstdint>

#include "lattice_bpd/lm/trie.h"

namespace lattice_bpd {

// ln backoff weight of a context that stores as many n-grams as there are words: nothing is left
// to back off to. ARPA files show -42.99515.
constexpr float kNoBackoff = -99.0f;

// Whether the LM gives a symbol a probability of its own (unseen vocabulary and <s> have none).
inline bool HasMass(float unigram_log_prob) { return unigram_log_prob > kNeverLogProb; }

std::uint64_t CountWordsWithMass(const Trie& trie);

// Fills trie->levels[m].backoff for every level below the highest. With h' the suffix of h and
// the sums over the words stored at h:
//
//   bow(h) = (1 - sum P(w | h)) / (1 - sum P(w | h'))          0 in ln where h stores nothing
//
// As OpenGrm NGram computes it: each 1 - sum is 1 - exp(-x) with x = -ln(sum) raised to at least
// 1e-9; a context that stores as many n-grams as there are words with mass gets kNoBackoff; the
// sums take the probabilities as stored, rounded to float32, so it is the stored model that sums
// to 1. One difference: where the lower sum comes within 1e-5 of 1 (there: reaches 1), what is
// left is summed from the words not stored at h, since rounding would make up much of 1 - sum.
//
// O(n log d) for n n-grams and contexts of d words; 8 bytes for each n-gram of two levels and 4 for
// each of all. Throws ValueError where a stored n-gram's suffix is not stored.
void AssignBackoffWeights(int num_threads, Trie* trie);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_BACKOFF_WEIGHTS_H_
