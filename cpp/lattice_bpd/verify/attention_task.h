// One task of attention.h: up to kQueries tokens and heads that read the same head of keys.
#ifndef LATTICE_BPD_VERIFY_ATTENTION_TASK_H_
#define LATTICE_BPD_VERIFY_ATTENTION_TASK_H_

#include <cstddef>
#include <vector>

#include "lattice_bpd/verify/attention.h"
#include "lattice_bpd/verify/products.h"

namespace lattice_bpd {

struct AttentionTask {
  static constexpr std::size_t kQueries = 16;

  std::size_t queries, padded_queries;  // padded to a multiple of 4
  std::size_t positions, width;         // width: of a row of scores, a multiple of 16
  std::size_t size;
  const void* keys;  // of the first position
  const void* values;
  std::ptrdiff_t key_stride, value_stride;
  float scale;
  const void* query[kQueries];
  void* outs[kQueries];
  const void* masks[kQueries];  // of the first position
  // Applies a mask to `positions` scores.
  void (*mask)(const AttentionTask& task, std::size_t query, float* scores);
};

// out[i][r] = row r . inputs[i]
struct ProductTask {
  const void* rows;  // (num_rows, columns), columns a multiple of 16
  std::size_t num_rows, columns;
  const float* inputs;  // (num_inputs, columns)
  std::size_t num_inputs;
  float* out;
  std::size_t stride;  // of `out`, from one input to the next
};

struct AttentionKernel {
  const char* name;
  bool (*runs)();
  void (*attend)(const AttentionTask& task, FloatType type, std::vector<float>* scratch);
  void (*multiply)(const ProductTask& task, FloatType type);
  void (*multiply_bytes)(const ProductTask& task);  // rows of int8
};

// The one that is used.
const AttentionKernel& ChosenKernel();

AttentionKernel AttentionAvx512();
AttentionKernel AttentionAvx2();
AttentionKernel AttentionPlain();

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_ATTENTION_TASK_H_
