// Several LMs in one: linear interpolation, written as a static backoff LM.
#ifndef LATTICE_BPD_TRAIN_INTERPOLATE_H_
#define LATTICE_BPD_TRAIN_INTERPOLATE_H_

#include <memory>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/token_sequences.h"

namespace lattice_bpd {

using LmList = std::vector<std::shared_ptr<const BackoffLm>>;

// The union of the LMs' n-grams, each with
//
//   P(w | h) = sum over i of weight_i P_i(w | h)      P_i backing off where hw is not in LM i
//
// and backoff weights computed again. So listed n-grams have the mixture's probability, others
// about: there the mixture of backoff LMs is no backoff LM (SRILM's static interpolation).
// weights are scaled to sum to 1; LMs of weight 0 are left out.
// Cost: one lookup of each n-gram in each LM, about 1 s for a million n-grams of two LMs on a core.
// Throws ValueError where the LMs' vocabularies differ, or weights are negative, not finite, all 0
// or not as many as LMs.
Trie InterpolateLms(const LmList& lms, std::vector<double> weights, int num_threads);

// The weights that maximise the held-out text's probability under the mixture, by EM (Jelinek and
// Mercer 1980) until no weight moves by 1e-5. Tokens unknown to all LMs do not count. 8 bytes for
// each token and LM. Throws ValueError where vocabularies differ, the sequences are bad or no
// token is known.
std::vector<double> TuneWeights(const LmList& lms, const TokenSequences& heldout, int num_threads);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_INTERPOLATE_H_
