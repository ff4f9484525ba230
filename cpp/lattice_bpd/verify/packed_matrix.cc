#include "lattice_bpd/verify/packed_matrix.h"

#include <algorithm>
#include <cmath>

namespace lattice_bpd {

PackedMatrix::PackedMatrix(const float* numbers, std::size_t num_rows, std::size_t num_columns)
    : rows(num_rows), columns(num_columns), values(rows * columns), scales(rows) {
  for (std::size_t row = 0; row < rows; ++row) {
    const float* const from = numbers + row * columns;
    float largest = 1e-30f, invalid = 0.0f;
    for (std::size_t d = 0; d < columns; ++d) {
      largest = std::max(largest, std::abs(from[d]));
      invalid += 0.0f * from[d];
    }
    scales[row] = largest / 127.0f + invalid;  // not a number where one is not
    for (std::size_t d = 0; d < columns && invalid == 0.0f; ++d) {
      values[row * columns + d] = static_cast<std::int8_t>(std::lround(from[d] / scales[row]));
    }
  }
}

}  // namespace lattice_bpd
