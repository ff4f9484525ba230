// Products of a few vectors with a matrix that is read once for all of them.
#ifndef LATTICE_BPD_VERIFY_PRODUCTS_H_
#define LATTICE_BPD_VERIFY_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

// A linear layer: out[i] = weight input[i] + bias, in float32, rounded to the type of the call.
struct LinearCall {
  FloatType type;
  std::size_t inputs, rows, columns;
  const void* input;   // (inputs, columns)
  const void* weight;  // (rows, columns)
  const void* bias;    // (rows), or null
  void* out;           // (inputs, rows)
};

// A result does not depend on the other inputs. Throws ValueError unless the columns are a multiple
// of 16.
void ApplyLinear(const LinearCall& call, int num_threads);

// A matrix of 8-bit numbers with a scale for each row: a quarter of the memory to read.
struct PackedMatrix {
  static constexpr std::size_t kColumns = 16;  // their number is a multiple of it

  PackedMatrix(const float* numbers, std::size_t num_rows, std::size_t num_columns);

  // out[i][r] = row r . inputs[i], for rows first .. last - 1: inputs (num_inputs, columns); rows
  // of `out` are `stride` apart.
  void Multiply(std::size_t first, std::size_t last, std::size_t num_inputs, const float* inputs,
                float* out, std::size_t stride) const;

  std::size_t rows, columns;
  std::vector<std::int8_t> values;
  std::vector<float> scales;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_PRODUCTS_H_
