// Multi-draft rejection sampling without replacement, for one place of a text.
//
// Draws d1, d2, .. come from q without replacement. With r the target's distribution and q' = q:
// d1 is accepted with probability min(1, r(d1) / q'(d1)); if it is not, r becomes what is left of
// it, max(r - q', 0) normalised, and q' loses d1 and is normalised; and so on. Where all draws are
// rejected the token is drawn from what is left. Its distribution is r (Leviathan et al. 2023 for
// one draw; Jeon et al. 2024 for draws without replacement).
#ifndef LATTICE_BPD_LATTICE_CHOOSE_DRAW_H_
#define LATTICE_BPD_LATTICE_CHOOSE_DRAW_H_

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/keyed_noise.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

// What draws came from: distinct token ids and their probabilities.
struct DrawnFrom {
  Span<TokenId> token_ids;
  Span<double> probs;
};

// The token at this place, by the rule above; r = softmax(logits). Column i of the noise decides on
// draw i, the column behind the last one draws. Throws ValueError for NaN or +inf among the logits
// or none above -inf, for a draw outside of q or doubled, and for q that is no distribution over
// tokens below the number of logits.
TokenId ChooseDraw(Span<float> logits, Span<TokenId> draws, const DrawnFrom& from,
                   const NoiseRow& noise);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_CHOOSE_DRAW_H_
