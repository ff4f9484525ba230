// Attention with every instruction set that runs here, against sums in double precision.
#include "lattice_bpd/verify/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/half.h"
#include "lattice_bpd/draft/packed_heads.h"
#include "lattice_bpd/verify/products.h"

namespace lattice_bpd {
namespace {

// Numbers as the call reads them, and what they are.
struct Numbers {
  Numbers(std::size_t count, FloatType type, std::mt19937* random) : bits(count), values(count) {
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < count; ++i) {
      float x = normal(*random);
      std::uint32_t word;
      std::memcpy(&word, &x, sizeof word);
      bits[i] = static_cast<std::uint16_t>(word >> 16);
      if (type == FloatType::kFloat16) bits[i] = FloatToFloat16(x);
      values[i] = type == FloatType::kFloat32 ? x : HalfToFloat(type, bits[i]);
    }
    data = type == FloatType::kFloat32 ? static_cast<const void*>(values.data()) : bits.data();
  }

  std::vector<std::uint16_t> bits;
  std::vector<float> values;
  const void* data;
};

void CheckAgainstDoubles(FloatType type, std::size_t heads, std::size_t kv_heads,
                         std::size_t queries, std::size_t positions, std::size_t size,
                         AttentionMask mask_type = AttentionMask::kBool) {
  const std::size_t rows = 2, group = heads / kv_heads;
  std::mt19937 random(static_cast<unsigned>(heads * queries + positions));
  const Numbers query(rows * heads * queries * size, type, &random);
  const Numbers key(rows * kv_heads * positions * size, type, &random);
  const Numbers value(rows * kv_heads * positions * size, type, &random);
  std::vector<std::uint8_t> seen(rows * queries * positions);
  for (std::size_t i = 0; i < seen.size(); ++i) {  // the first query of row 0 sees nothing
    seen[i] = mask_type == AttentionMask::kNone ||
              (i >= positions && i % positions > 1 && random() % 4 != 0);
  }
  std::vector<float> out(rows * queries * heads * size, 7.0f);
  const auto stride = [](std::size_t count) { return static_cast<std::ptrdiff_t>(count); };
  AttentionCall call;
  call.type = type;
  call.rows = rows;
  call.heads = heads;
  call.kv_heads = kv_heads;
  call.queries = queries;
  call.positions = positions;
  call.size = size;
  call.query = {query.data, stride(heads * queries * size), stride(queries * size), stride(size)};
  call.key = {key.data, stride(kv_heads * positions * size), stride(positions * size),
              stride(size)};
  call.value = {value.data, call.key.row_stride, call.key.head_stride, stride(size)};
  call.mask_type = mask_type;
  if (mask_type == AttentionMask::kBool) {
    call.mask = seen.data();
    call.mask_row_stride = stride(queries * positions);
    call.mask_query_stride = stride(positions);
  }
  call.scale = 0.3f;
  call.out = out.data();
  Attend(call, 2);

  const double tolerance = type == FloatType::kFloat32 ? 1e-4 : 5e-3;  // bfloat16: 8 bits
  int differences = 0;
  for (std::size_t place = 0; place < rows * queries * heads; ++place) {
    const std::size_t head = place % heads, token = place / heads % queries;
    const std::size_t row = place / heads / queries;
    const float* own = query.values.data() + ((row * heads + head) * queries + token) * size;
    const std::size_t first = (row * kv_heads + head / group) * positions * size;
    std::vector<double> sums(size, 0.0);
    double total = 0.0;
    for (std::size_t p = 0; p < positions; ++p) {
      if (!seen[(row * queries + token) * positions + p]) continue;
      double score = 0.0;
      for (std::size_t d = 0; d < size; ++d) score += own[d] * key.values[first + p * size + d];
      const double weight = std::exp(score * static_cast<double>(call.scale));
      total += weight;
      for (std::size_t d = 0; d < size; ++d) sums[d] += weight * value.values[first + p * size + d];
    }
    for (std::size_t d = 0; d < size; ++d) {
      const double wanted = total > 0.0 ? sums[d] / total : 0.0;
      const std::size_t i = place * size + d;
      const auto* halves = reinterpret_cast<const std::uint16_t*>(out.data());
      const double found = type == FloatType::kFloat32 ? out[i] : BFloat16ToFloat(halves[i]);
      const bool is_close = std::abs(found - wanted) <= tolerance * (0.01 + std::abs(wanted));
      differences += !is_close;
    }
  }
  CHECK(differences == 0);
}

TEST_CASE("attention is softmax of the positions that are seen, with every instruction set") {
  for (const std::string& name : AttentionInstructionSets()) {
    SetAttentionInstructionSet(name);
    INFO("instruction set ", name);
    for (const FloatType type : {FloatType::kFloat32, FloatType::kBFloat16}) {
      CheckAgainstDoubles(type, 6, 2, 1, 37, 64);
      CheckAgainstDoubles(type, 3, 3, 5, 16, 16);
      CheckAgainstDoubles(type, 8, 1, 9, 130, 48);
      CheckAgainstDoubles(type, 6, 2, 1, 37, 64, AttentionMask::kNone);
    }
  }
  SetAttentionInstructionSet("");
}

TEST_CASE("attention refuses heads that do not fit") {
  AttentionCall call = {};
  call.heads = 3;
  call.kv_heads = 2;
  call.size = 16;
  CHECK_THROWS_AS(Attend(call, 1), ValueError);
  call.kv_heads = 3;
  call.size = 20;
  CHECK_THROWS_AS(Attend(call, 1), ValueError);
}

TEST_CASE("products with rows of 8 bits, with every instruction set") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const std::string& name : AttentionInstructionSets()) {
    SetAttentionInstructionSet(name);
    INFO("instruction set ", name);
    for (const std::size_t inputs : {1, 3, 5, 7}) {
      const std::size_t rows = 29, columns = 48, first = 3, last = 28;
      std::vector<float> numbers(rows * columns), vectors(inputs * columns);
      for (float& x : numbers) x = normal(random);
      for (float& x : vectors) x = normal(random);
      const PackedMatrix matrix(numbers.data(), rows, columns);
      std::vector<float> out(inputs * rows, 99.0f);
      matrix.Multiply(first, last, inputs, vectors.data(), out.data(), rows);
      int differences = 0;
      for (std::size_t i = 0; i < inputs * rows; ++i) {
        const std::size_t row = i % rows;
        double exact = 0.0, packed = 0.0;
        for (std::size_t d = 0; d < columns; ++d) {
          const double input = vectors[i / rows * columns + d];
          exact += input * numbers[row * columns + d];
          packed += input * matrix.values[row * columns + d] * matrix.scales[row];
        }
        const bool is_asked = row >= first && row < last;
        differences += std::abs(out[i] - (is_asked ? packed : 99.0)) > 1e-4;
        differences += is_asked && std::abs(out[i] - exact) > 0.3;
      }
      CHECK(differences == 0);
    }
  }
  SetAttentionInstructionSet("");
}

TEST_CASE("linear layers are products in double precision, with every instruction set") {
  std::mt19937 random(5);
  for (const std::string& name : AttentionInstructionSets()) {
    SetAttentionInstructionSet(name);
    INFO("instruction set ", name);
    for (const FloatType type : {FloatType::kFloat32, FloatType::kFloat16, FloatType::kBFloat16}) {
      const std::size_t inputs = 13, rows = 101, columns = 48;
      const Numbers vectors(inputs * columns, type, &random), matrix(rows * columns, type, &random);
      const Numbers bias(rows, type, &random);
      const bool is_float = type == FloatType::kFloat32;
      std::vector<float> whole;
      for (const std::size_t count : {inputs, std::size_t{1}, std::size_t{4}, std::size_t{6}}) {
        std::vector<float> floats(count * rows);
        std::vector<std::uint16_t> halves(count * rows);
        ApplyLinear({type, count, rows, columns, vectors.data, matrix.data,
                     count == 4 ? nullptr : bias.data,
                     is_float ? static_cast<void*>(floats.data()) : halves.data()},
                    2);
        int differences = 0, changes = 0;
        for (std::size_t i = 0; i < count * rows; ++i) {
          if (!is_float) floats[i] = HalfToFloat(type, halves[i]);
          double wanted = count == 4 ? 0.0 : bias.values[i % rows];
          for (std::size_t d = 0; d < columns; ++d) {
            wanted += double{vectors.values[i / rows * columns + d]} *
                      matrix.values[i % rows * columns + d];
          }
          const double rounding = is_float ? 0.0 : std::abs(wanted) / 256;
          differences += !(std::abs(floats[i] - wanted) <= 1e-4 + rounding);
          changes += !whole.empty() && count != 4 && floats[i] != whole[i];
        }
        if (whole.empty()) whole = floats;
        CHECK(differences == 0);
        CHECK(changes == 0);  // no result depends on the other inputs
      }
    }
  }
  SetAttentionInstructionSet("");
  CHECK_THROWS_AS(
      ApplyLinear({FloatType::kFloat32, 1, 1, 24, nullptr, nullptr, nullptr, nullptr}, 1),
      ValueError);
}

TEST_CASE("linear layers of more than 1,024 states, which are read in parts") {
  std::mt19937 random(6);
  const std::size_t count = 1030, last = 8, rows = 3, columns = 16;
  const Numbers vectors(count * columns, FloatType::kFloat32, &random);
  const Numbers matrix(rows * columns, FloatType::kFloat32, &random);
  std::vector<float> all(count * rows), end(last * rows);
  ApplyLinear(
      {FloatType::kFloat32, count, rows, columns, vectors.data, matrix.data, nullptr, all.data()},
      2);
  ApplyLinear({FloatType::kFloat32, last, rows, columns,
               vectors.values.data() + (count - last) * columns, matrix.data, nullptr, end.data()},
              2);
  CHECK(std::equal(end.begin(), end.end(), all.end() - end.size()));
}

TEST_CASE("rounding to half precision is to the nearest, ties to even") {
  int differences = 0;
  for (std::uint32_t bits = 0; bits < 0x7c00u; ++bits) {  // all that are finite, and the next
    const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(bits + 1);
    const float from = Float16ToFloat(low);
    const float to = high == 0x7c00u ? 65536.0f : Float16ToFloat(high);
    const float middle = (from + to) / 2;
    differences += FloatToFloat16(from) != low;
    differences += FloatToFloat16(middle) != (bits % 2 == 0 ? low : high);
    differences += FloatToFloat16(-std::nextafter(middle, 0.0f)) != (low | 0x8000u);
    differences += FloatToFloat16(std::nextafter(middle, to)) != high;
  }
  CHECK(differences == 0);
  CHECK(FloatToFloat16(INFINITY) == 0x7c00u);
  CHECK(FloatToFloat16(1e-10f) == 0);
  CHECK(std::isnan(Float16ToFloat(FloatToFloat16(-NAN))));
  CHECK(std::isnan(BFloat16ToFloat(FloatToBFloat16(NAN))));
  CHECK(FloatToBFloat16(BitsToFloat(0x3f808000u)) == 0x3f80u);
  CHECK(FloatToBFloat16(BitsToFloat(0x3f818000u)) == 0x3f82u);
  CHECK(FloatToBFloat16(BitsToFloat(0x3f808001u)) == 0x3f81u);
}

TEST_CASE("packed heads refuse arrays that do not fit, and numbers that are none") {
  std::vector<float> inner(2 * 16 * 32), outer(2 * 16 * 16), zeros(32), rows(3 * 16, 1.0f);
  const std::vector<TokenId> ids = {4, 7, 9};
  PackedHeads::Weights weights = {2, 16, 16, inner, zeros, outer, zeros, rows, {}, ids};
  const std::vector<float> hidden(16, 1.0f);
  const TopK best = PackedHeads(weights).Find(hidden, hidden, 2, 1);
  CHECK(best.token_ids == std::vector<TokenId>{4, 7, 4, 7});  // all have the same probability
  CHECK(best.scores[0] == doctest::Approx(-std::log(3.0)));
  CHECK_THROWS_AS(PackedHeads(weights).Find(hidden, {}, 2, 1), ValueError);
  CHECK_THROWS_AS(PackedHeads(weights).Find(hidden, zeros, 2, 1), ValueError);
  CHECK_THROWS_AS(PackedHeads(weights).Find(zeros, hidden, 2, 1), ValueError);
  CHECK_THROWS_AS(PackedHeads(weights).Find(hidden, hidden, 4, 1), ValueError);
  weights.hidden_size = 8;
  CHECK_THROWS_AS(PackedHeads{weights}, ValueError);
  weights.hidden_size = 16;
  rows[20] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(PackedHeads(weights).Find(hidden, hidden, 2, 1), ValueError);
}

}  // namespace
}  // namespace lattice_bpd
