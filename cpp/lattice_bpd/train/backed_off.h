// Probabilities of n-grams that are stored but did not occur.
#ifndef LATTICE_BPD_TRAIN_BACKED_OFF_H_
#define LATTICE_BPD_TRAIN_BACKED_OFF_H_

#include "lattice_bpd/lm/trie.h"

namespace lattice_bpd {

// Gives each n-gram hw whose log probability is -inf (count 0: it is only a history of others, see
// count_targets.h) what backing off would give: bow(h) P(w | h'), bow(h) from the n-grams of h that
// have occurred. Adding it to the model so changes no probability. O(n-grams).
void AssignBackedOff(int num_threads, Trie* trie);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_BACKED_OFF_H_
