// Attention of a few new tokens over the KV caches of their texts, where a mask says what each
// token sees: a step of batched decoding, or the tree of a draft.
#ifndef LATTICE_BPD_VERIFY_ATTENTION_H_
#define LATTICE_BPD_VERIFY_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

enum class AttentionMask { kNone, kBool, kAdded };  // kAdded: numbers of the type of the call

// A tensor (rows, heads, tokens, size): strides in elements, that of `size` is 1.
struct HeadsView {
  const void* data;
  std::ptrdiff_t row_stride, head_stride, token_stride;
};

struct AttentionCall {
  FloatType type;  // not kFloat16
  std::size_t rows, heads, kv_heads, queries, positions, size;
  HeadsView query, key, value;  // `queries` tokens of `heads`; `positions` tokens of `kv_heads`
  AttentionMask mask_type = AttentionMask::kNone;
  const void* mask = nullptr;  // (rows, queries, positions), positions in a row
  std::ptrdiff_t mask_row_stride = 0, mask_query_stride = 0;  // 0: all have the same
  float scale;
  void* out;  // (rows, queries, heads, size), in a row
};

// softmax(scale * query key^T + mask) value in float32, rounded to the type of the call; query
// head i reads key head i / (heads / kv_heads). A token that sees no position gets zeros. Positions
// before the first and after the last that a token sees are not read.
// Throws ValueError for sizes that do not fit each other.
void Attend(const AttentionCall& call, int num_threads);

// Instruction sets it is built for that run here, best first; the first one is used.
std::vector<std::string> AttentionInstructionSets();

// For tests: use another one; "" means the best. Throws ValueError for one that does not run here.
void SetAttentionInstructionSet(const std::string& name);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_ATTENTION_H_
