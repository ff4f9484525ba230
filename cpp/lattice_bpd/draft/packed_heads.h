// Draft heads over a draft vocabulary, of one text at a time on a CPU: VocabularyHeads of Python
// with weights of 8 bits, since a call of them takes as long as reading its weights.
#ifndef LATTICE_BPD_DRAFT_PACKED_HEADS_H_
#define LATTICE_BPD_DRAFT_PACKED_HEADS_H_

#include <cstddef>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"
#include "lattice_bpd/lattice/top_k.h"
#include "lattice_bpd/verify/products.h"

namespace lattice_bpd {

// Slot j of H: logits = rows (hidden + outer_bias_j + outer_j silu(inner_j x + inner_bias_j)) +
// rows_bias, where x is the normalized hidden state and after it the normalized embedding.
class PackedHeads {
 public:
  struct Weights {
    std::size_t num_slots, hidden_size, inner_size;  // H, D, F
    Span<float> inner, inner_bias;                   // (H, F, 2 D), (H, F)
    Span<float> outer, outer_bias;                   // (H, D, F), (H, D)
    Span<float> rows, rows_bias;                     // (K, D), (K) or empty
    Span<TokenId> token_ids;                         // (K)
  };

  // Throws ValueError for arrays that do not fit, and D or F that are no multiples of 16.
  explicit PackedHeads(const Weights& weights);

  // The top_k best tokens of each slot, with log probabilities over the draft vocabulary. Throws
  // ValueError for vectors of another size, and for logits that are not finite.
  TopK Find(Span<float> hidden, Span<float> embedding, int top_k, int threads) const;

 private:
  std::size_t num_slots_, hidden_size_, inner_size_;
  PackedMatrix inner_, outer_, rows_;
  std::vector<float> inner_bias_, outer_bias_, rows_bias_;
  std::vector<TokenId> token_ids_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_PACKED_HEADS_H_
