// One sample from softmax(logits) by the Gumbel-max trick, with noise keyed by the position.
#ifndef LATTICE_BPD_LATTICE_SAMPLE_TOKEN_H_
#define LATTICE_BPD_LATTICE_SAMPLE_TOKEN_H_

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/keyed_noise.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

// argmax of scale * logits[i] + noise.Gumbel(i), the smaller i among equals; -inf is never sampled.
// Throws ValueError for NaN or +inf, no logit, or all of them -inf.
//
// Logarithms are taken only where a token could win: the noise is bounded by the leading ones of
// its bits, so that of V tokens a few dozen are computed exactly.
TokenId SampleToken(Span<float> logits, double scale, const NoiseRow& noise);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_SAMPLE_TOKEN_H_
