// Scoring running text: one call for a whole token array.
#ifndef LATTICE_BPD_LM_SCORE_TEXT_H_
#define LATTICE_BPD_LM_SCORE_TEXT_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

// ln P(w_i | w_1 .. w_{i-1}) for each token, and one more entry for </s> where eos is true.
// <s> precedes the text where bos is true. Throws ValueError for ids outside the vocabulary.
std::vector<double> ScoreText(const BackoffLm& lm, Span<TokenId> token_ids, bool bos, bool eos);

// ln P(token_id | context). Throws ValueError for ids outside the vocabulary.
double LogProb(const BackoffLm& lm, TokenId token_id, Span<TokenId> context, bool bos);

// ln P of k candidates after each of B contexts, (B, k): context i is token_ids[offsets[i]] ..
// token_ids[offsets[i + 1] - 1]. O(order) for each context, then as Query for each candidate.
// Ids beyond the vocabulary are <unk>. Throws ValueError for negative ones, offsets that do not
// rise from 0 to the number of token ids, or candidates that are not as many for each context.
std::vector<double> LogProbs(const BackoffLm& lm, Span<TokenId> token_ids,
                             Span<std::int64_t> offsets, Span<TokenId> candidates, bool bos);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_SCORE_TEXT_H_
