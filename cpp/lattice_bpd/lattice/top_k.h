// The k best tokens of each head, straight from its logits.
#ifndef LATTICE_BPD_LATTICE_TOP_K_H_
#define LATTICE_BPD_LATTICE_TOP_K_H_

#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

struct TopKOptions {
  int top_k = 16;
  bool log_softmax = false;  // scores are log probabilities over the whole row, else raw logits
};

// Row r's candidates are entries r * top_k .. (r + 1) * top_k - 1, by falling score, equal scores
// by rising token id. Masked tokens (-inf) come last, also by token id.
struct TopK {
  int top_k = 0;
  std::vector<TokenId> token_ids;
  std::vector<float> scores;
};

// Throws ValueError where top_k is outside 1..columns, or a logit is NaN or +inf (the message
// names row and token). Cost: one pass over each row; a heap of k is touched only by a logit that
// beats the k-th best so far.
TopK SelectTopK(const LogitsView& logits, const TopKOptions& options);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_TOP_K_H_
