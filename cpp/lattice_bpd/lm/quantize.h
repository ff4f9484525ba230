// A smaller LM whose log probabilities and backoffs are rounded to few values for each order.
#ifndef LATTICE_BPD_LM_QUANTIZE_H_
#define LATTICE_BPD_LM_QUANTIZE_H_

#include <memory>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

// Rounds each log probability and each backoff to one of at most 2^bits values of its order
// (bits: 8, 12 or 16), chosen by 1-D k-means (Lloyd 1982). Kept exactly: a backoff of 0 (nothing to
// back off from), and numbers below -50, which mean "never" and "unseen". An order that has
// few distinct values loses nothing. The largest change is kept with each level (LevelForm) and is
// the most by which a stored number is off; sums over a context are 1 up to exp of that, since
// weights are not computed again: 1 - sum of rounded probabilities would be worse, and may fall
// below 0.
//
// Codes take 1 byte for 8 bits, else 2; packed kSmall. Cost: sorting each order's values.
// Throws ValueError for another number of bits.
std::shared_ptr<const BackoffLm> QuantizeLm(const BackoffLm& lm, int bits);

// The same for one list of numbers; returns the largest change.
float QuantizeValues(std::size_t num_values, std::vector<float>* values);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_QUANTIZE_H_
