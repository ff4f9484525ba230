// A matrix of 8-bit numbers with a scale for each row: a quarter of the memory to read.
#ifndef LATTICE_BPD_VERIFY_PACKED_MATRIX_H_
#define LATTICE_BPD_VERIFY_PACKED_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lattice_bpd {

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

#endif  // LATTICE_BPD_VERIFY_PACKED_MATRIX_H_
