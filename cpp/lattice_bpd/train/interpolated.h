// Estimators that interpolate with the lower order, written as backoff LMs.
#ifndef LATTICE_BPD_TRAIN_INTERPOLATED_H_
#define LATTICE_BPD_TRAIN_INTERPOLATED_H_

#include <vector>

#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/estimate_options.h"
#include "lattice_bpd/train/good_turing.h"
#include "lattice_bpd/train/ngram_counts.h"

namespace lattice_bpd {

// For n-grams hw that are stored, with C(h) = context_count, T(h) the number of stored hw, and h'
// the suffix of h:
//
//   P(w | h)  = a(w | h) + g(h) P(w | h')      g(h) = 1 - sum of a(w | h) over the stored w
//   a(w | h)  = (c(hw) - D) / C(h)             absolute and Kneser-Ney, D by order (discounts.h)
//             = c(hw) / (C(h) + T(h))          Witten-Bell: g(h) = T / (C + T) if nothing is pruned
//
// So P(w | h) = g(h) P(w | h') where hw is not stored: g is the backoff weight.
// AssignBackoffWeights computes it again from the float32 probabilities, that the stored model may
// sum to 1. Unigrams: unigrams.h.
//
// `counts` (used up) is closed under prefixes and suffixes; for the Kneser-Ney methods it holds
// continuation counts. count_of_counts has an entry for each level. O(n log d) for n n-grams and
// contexts of d words; 24 bytes for each n-gram of two levels.
Trie EstimateInterpolated(CountTrie counts, const std::vector<CountOfCounts>& count_of_counts,
                          const EstimateOptions& options, TrainReport* report);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_INTERPOLATED_H_
