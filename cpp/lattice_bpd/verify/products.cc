#include "lattice_bpd/verify/products.h"

#include <algorithm>
#include <cmath>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/half.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/verify/attention_task.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kMostInputs = 1024;    // at once, since they are copied as floats
constexpr std::size_t kTaskBytes = 1 << 17;  // of a matrix: fit a core's cache beside the inputs
constexpr std::size_t kTaskRows = 24;        // or twice as many; a multiple of kRowsOf

const float* ToFloats(FloatType type, const void* numbers, std::size_t count,
                      std::vector<float>* floats) {
  if (type == FloatType::kFloat32 || numbers == nullptr) {
    return static_cast<const float*>(numbers);
  }
  floats->resize(count);
  const auto* const halves = static_cast<const std::uint16_t*>(numbers);
  for (std::size_t i = 0; i < count; ++i) (*floats)[i] = HalfToFloat(type, halves[i]);
  return floats->data();
}

}  // namespace

void ApplyLinear(const LinearCall& call, int num_threads) {
  if (call.columns % PackedMatrix::kColumns != 0) {
    throw ValueError(StrCat("apply_linear: inputs of ", call.columns,
                            " numbers; expected a multiple of ", PackedMatrix::kColumns));
  }
  const std::size_t size = call.type == FloatType::kFloat32 ? 4 : 2;
  const std::size_t row_bytes = call.columns * size;
  const std::size_t per_task = kTaskRows * (2 * kTaskRows * row_bytes <= kTaskBytes ? 2 : 1);
  if (call.inputs > kMostInputs) {
    LinearCall first = call, rest = call;
    first.inputs = kMostInputs;
    rest.inputs -= kMostInputs;
    rest.input = static_cast<const char*>(call.input) + kMostInputs * row_bytes;
    rest.out = static_cast<char*>(call.out) + kMostInputs * call.rows * size;
    ApplyLinear(first, num_threads);
    return ApplyLinear(rest, num_threads);
  }
  std::vector<float> input_floats, bias_floats;
  const float* const inputs =
      ToFloats(call.type, call.input, call.inputs * call.columns, &input_floats);
  const float* const bias = ToFloats(call.type, call.bias, call.rows, &bias_floats);
  RunParallel((call.rows + per_task - 1) / per_task, num_threads, [&](std::size_t number) {
    thread_local std::vector<float> sums;
    const std::size_t first = number * per_task, count = std::min(per_task, call.rows - first);
    sums.resize(call.inputs * count);
    const ProductTask task = {static_cast<const char*>(call.weight) + first * row_bytes,
                              count,
                              call.columns,
                              inputs,
                              call.inputs,
                              sums.data(),
                              count};
    ChosenKernel().multiply(task, call.type);
    for (std::size_t i = 0; i < call.inputs; ++i) {
      float* const from = sums.data() + i * count;
      for (std::size_t r = 0; bias != nullptr && r < count; ++r) from[r] += bias[first + r];
      const std::size_t to = i * call.rows + first;
      if (call.type == FloatType::kFloat32) {
        std::copy_n(from, count, static_cast<float*>(call.out) + to);
      } else {
        auto* const out = static_cast<std::uint16_t*>(call.out) + to;
        const bool is_float16 = call.type == FloatType::kFloat16;
        for (std::size_t r = 0; r < count; ++r) {
          out[r] = is_float16 ? FloatToFloat16(from[r]) : FloatToBFloat16(from[r]);
        }
      }
    }
  });
}

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

void PackedMatrix::Multiply(std::size_t first, std::size_t last, std::size_t num_inputs,
                            const float* inputs, float* out, std::size_t stride) const {
  ChosenKernel().multiply_bytes({values.data() + first * columns, last - first, columns, inputs,
                                 num_inputs, out + first, stride});
  for (std::size_t i = 0; i < num_inputs; ++i) {
    for (std::size_t row = first; row < last; ++row) out[i * stride + row] *= scales[row];
  }
}

}  // namespace lattice_bpd
