// Backoff weights that make each context of a Trie sum to 1.
//
// For any model whose stored log probabilities are fixed: Katz and the other estimators end with
// it, and so does every pruning.
#ifndef LATTICE_BPD_TRAIN_BACKOFF_WEIGHTS_H_
#define LATTICE_BPD_TRAIN_BACKOFF_WEIGHTS_H_

#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/context_mass.h"

namespace lattice_bpd {

// ln backoff weight of a context that stores as many n-grams as there are words: nothing is left
// to back off to. ARPA files show -42.99515.
constexpr float kNoBackoff = -99.0f;

// Fills trie->levels[m].backoff for every level below the highest. With h' the suffix of h and
// the sums over the words stored at h:
//
//   bow(h) = (1 - sum P(w | h)) / (1 - sum P(w | h'))          0 in ln where h stores nothing
//
// context_mass.h says how each 1 - sum is computed; a context that stores as many n-grams as there
// are words with mass gets kNoBackoff. The sums take the probabilities as stored, rounded to
// float32, so it is the stored model that sums to 1.
//
// O(n log d) for n n-grams and contexts of d words; memory: see ContextMasses. Throws ValueError
// where a stored n-gram's suffix is not stored.
void AssignBackoffWeights(int num_threads, Trie* trie);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_BACKOFF_WEIGHTS_H_
