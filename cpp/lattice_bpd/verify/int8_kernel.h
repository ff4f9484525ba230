// Products of a few vectors with rows of 8-bit numbers, beside attention_kernel.h, whose vectors it
// uses, in the same builds.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lattice_bpd/verify/packed_matrix.h"

namespace lattice_bpd {
namespace {

// GCC converts generic vectors of bytes one by one.
[[gnu::always_inline]] inline void Load(const std::int8_t* from, Floats* to) {
  Ints ints = {};
#if defined(__x86_64__)
  if constexpr (kLanes == 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m512i wide = _mm512_maskz_cvtepi8_epi32(0xffff, bytes);  // the other one warns
    std::memcpy(&ints, &wide, sizeof ints);
  } else if constexpr (kLanes == 8) {
    const __m256i wide =
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    std::memcpy(&ints, &wide, sizeof ints);
  }
#endif
  if constexpr (kLanes == 4) {
    for (int i = 0; i < kLanes; ++i) ints[i] = from[i];
  }
  *to = __builtin_convertvector(ints, Floats);
}

// kRows rows from `row` on, with kInputs vectors.
template <int kRows, int kInputs>
[[gnu::always_inline]] inline void MultiplyBlock(const PackedMatrix& matrix, std::size_t row,
                                                 const float* inputs, float* out,
                                                 std::size_t stride) {
  const std::size_t columns = matrix.columns;
  const std::int8_t* const values = matrix.values.data() + row * columns;
  constexpr int kUsed = kRows * kInputs, kSums = kUsed <= 8 ? 8 : 16;
  Floats sums[kSums] = {};
  for (std::size_t d = 0; d < columns; d += kLanes) {
    Floats weights[kRows];
    for (int r = 0; r < kRows; ++r) Load(values + r * columns + d, &weights[r]);
    for (int i = 0; i < kInputs; ++i) {
      Floats input;
      Load(inputs + i * columns + d, &input);
      for (int r = 0; r < kRows; ++r) sums[kRows * i + r] += input * weights[r];
    }
  }
  float dots[kSums];
  SumAll<kSums>(sums, dots);
  for (int i = 0; i < kInputs; ++i) {
    for (int r = 0; r < kRows; ++r) {
      out[i * stride + row + r] = dots[kRows * i + r] * matrix.scales[row + r];
    }
  }
}

template <int kRows, int kInputs>
void MultiplyRows(const PackedMatrix& matrix, std::size_t first, std::size_t last,
                  const float* inputs, float* out, std::size_t stride) {
  std::size_t row = first;
  for (; row + kRows <= last; row += kRows) {
    MultiplyBlock<kRows, kInputs>(matrix, row, inputs, out, stride);
  }
  for (; row < last; ++row) MultiplyBlock<1, kInputs>(matrix, row, inputs, out, stride);
}

void MultiplyPacked(const PackedMatrix& matrix, std::size_t first, std::size_t last,
                    std::size_t num_inputs, const float* inputs, float* out, std::size_t stride) {
  constexpr std::size_t kMost = 5;  // as many sums as there are registers for
  for (std::size_t i = 0; i < num_inputs;) {
    const std::size_t count = num_inputs - i >= kMost ? kMost : 1;
    const auto multiply = count == kMost ? &MultiplyRows<2, kMost> : &MultiplyRows<8, 1>;
    multiply(matrix, first, last, inputs + i * matrix.columns, out + i * stride, stride);
    i += count;
  }
}

}  // namespace
}  // namespace lattice_bpd
