// From a packed LM back to a trie that can be changed: the inverse of BackoffLm::FromTrie.
#ifndef LATTICE_BPD_LM_UNPACK_H_
#define LATTICE_BPD_LM_UNPACK_H_

#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/lm/trie.h"

namespace lattice_bpd {

// The same n-grams and numbers. O(n-grams); 16 bytes for each below the highest order, 8 there.
// A damaged file gives a trie that FromTrie may refuse, never a wild read.
Trie UnpackLm(const BackoffLm& lm);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_UNPACK_H_
