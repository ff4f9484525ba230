// Multi-draft rejection sampling without replacement, for one position of a text.
//
// Draft tokens d1, d2, .. are samples from q without replacement. With r the target's distribution
// and q' = q: d1 is accepted with probability min(1, r(d1) / q'(d1)); if it is not, r becomes what
// is left of it, max(r - q', 0) normalized, and q' loses d1 and is normalized; and so on. Where all
// are rejected the token is sampled from what is left. Its distribution is r (Leviathan et al. 2023
// for one draft token; Jeon et al. 2024 for samples without replacement).
#ifndef LATTICE_BPD_LATTICE_REJECTION_SAMPLING_H_
#define LATTICE_BPD_LATTICE_REJECTION_SAMPLING_H_

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/keyed_noise.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

// q, the distribution of the draft tokens: distinct token ids and their probabilities.
struct DraftDistribution {
  Span<TokenId> token_ids;
  Span<double> probs;
};

// The token at this position, by the rule above; r = softmax(logits). Column i of the noise decides
// on draft token i, the column after the last one samples. With a lenience l below 1 a draft token
// is accepted with probability min(1, r(d) / (l q'(d))): no token is then more than 1 / l times as
// probable as under r (Leviathan et al. 2023, A.5). Throws ValueError for NaN or +inf among the
// logits or none above -inf, for a draft token outside of q or doubled, and for q that is no
// distribution over tokens below the number of logits.
TokenId RejectionSample(Span<float> logits, Span<TokenId> draft_tokens,
                        const DraftDistribution& from, const NoiseRow& noise,
                        double lenience = 1.0);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_REJECTION_SAMPLING_H_
