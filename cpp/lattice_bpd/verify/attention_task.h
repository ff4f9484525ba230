// One task of attention.h: up to kQueries tokens and heads that read the same head of keys.
#ifndef LATTICE_BPD_VERIFY_ATTENTION_TASK_H_
#define LATTICE_BPD_VERIFY_ATTENTION_TASK_H_

#include <cstddef>
#include <vector>

#include "lattice_bpd/verify/attention.h"
#include "lattice_bpd/verify/packed_matrix.h"

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

struct AttentionKernel {
  const char* name;
  bool (*runs)();
  void (*attend)(const AttentionTask& task, AttentionType type, std::vector<float>* scratch);
  // PackedMatrix::Multiply.
  void (*multiply)(const PackedMatrix& matrix, std::size_t first, std::size_t last,
                   std::size_t num_inputs, const float* inputs, float* out, std::size_t stride);
};

AttentionKernel AttentionAvx512();
AttentionKernel AttentionAvx2();
AttentionKernel AttentionPlain();

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_ATTENTION_TASK_H_
