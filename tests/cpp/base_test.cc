// Checksums, half-precision logits and the score grid.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/checksum.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/half.h"
#include "lattice_bpd/base/label.h"
#include "lattice_bpd/base/score_grid.h"

namespace lattice_bpd {
namespace {

std::uint32_t BitsOf(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

std::vector<unsigned char> RandomBytes(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> bytes(size);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

TEST_CASE("checksum: every single bit of every size up to 100 bytes counts") {
  for (std::size_t size = 1; size <= 100; ++size) {
    std::vector<unsigned char> bytes = RandomBytes(size, static_cast<std::uint32_t>(size));
    const std::uint64_t whole = Checksum(bytes.data(), size);
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
      INFO("size ", size, " bit ", bit);
      CHECK(Checksum(bytes.data(), size) != whole);
      bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    }
    CHECK(Checksum(bytes.data(), size) == whole);
  }
}

TEST_CASE("checksum: trailing zeros, cuts, swapped words and misaligned data") {
  const std::vector<unsigned char> zeros(64, 0);
  for (std::size_t size = 0; size < 64; ++size) {
    CHECK(Checksum(zeros.data(), size) != Checksum(zeros.data(), size + 1));
  }
  std::vector<unsigned char> bytes = RandomBytes(96, 7);
  const std::uint64_t whole = Checksum(bytes.data(), bytes.size());
  for (std::size_t at = 0; at + 40 <= bytes.size(); at += 8) {  // a word, and its lane's next
    std::vector<unsigned char> swapped = bytes;
    std::swap_ranges(swapped.begin() + at, swapped.begin() + at + 8, swapped.begin() + at + 32);
    CHECK(Checksum(swapped.data(), swapped.size()) != whole);
  }
  std::vector<unsigned char> shifted(bytes.size() + 1);
  std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
  CHECK(Checksum(shifted.data() + 1, bytes.size()) == whole);
  CHECK(Checksum(nullptr, 0) == Checksum(bytes.data(), 0));
}

TEST_CASE("half: values that are written down in IEEE 754") {
  CHECK(Float16ToFloat(0x3c00) == 1.0f);
  CHECK(Float16ToFloat(0xc000) == -2.0f);
  CHECK(Float16ToFloat(0x7bff) == 65504.0f);         // the largest
  CHECK(Float16ToFloat(0x0400) == 0x1p-14f);         // the smallest normal
  CHECK(Float16ToFloat(0x03ff) == 1023 * 0x1p-24f);  // the largest subnormal
  CHECK(Float16ToFloat(0x8001) == -0x1p-24f);        // the smallest subnormal, negative
  CHECK(Float16ToFloat(0x7c00) == std::numeric_limits<float>::infinity());
  CHECK(Float16ToFloat(0xfc00) == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(Float16ToFloat(0x7e00)));
  CHECK(std::isnan(Float16ToFloat(0xfc01)));
  CHECK(BitsOf(Float16ToFloat(0x8000)) == 0x80000000u);  // -0
  CHECK(BFloat16ToFloat(0x3f80) == 1.0f);
  CHECK(BFloat16ToFloat(0xc040) == -3.0f);
  CHECK(std::isnan(BFloat16ToFloat(0x7fc0)));
}

TEST_CASE("half: all 65,536 float16 by their definition (-1)^s 2^(e-15) (1 + f/1024)") {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31u);
    const int fraction = static_cast<int>(bits & 1023u);
    if (exponent == 31) continue;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    const double expected = (bits & 0x8000u) != 0 ? -magnitude : magnitude;
    INFO("bits ", bits);
    CHECK(static_cast<double>(Float16ToFloat(static_cast<std::uint16_t>(bits))) == expected);
  }
}

TEST_CASE("score grid: float32 of magnitude 1 or more stays as it is") {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(1.0f, 5e4f);
  for (int i = 0; i < 1000; ++i) {
    const float value = uniform(random);
    CHECK(ToScoreGrid(value) == static_cast<double>(value));
    CHECK(ToScoreGrid(-value) == -static_cast<double>(value));
  }
}

TEST_CASE("score grid: parts move by half a step at most, ties go to even") {
  CHECK(ToScoreGrid(0x1p-25) == 0.0);
  CHECK(ToScoreGrid(3 * 0x1p-25) == 2 * 0x1p-24);
  CHECK(ToScoreGrid(-0.1) == doctest::Approx(-0.1).epsilon(1e-7));
  CHECK(std::abs(ToScoreGrid(0.1) - 0.1) <= 0x1p-25);
}

TEST_CASE("score grid: sums are the same in any order") {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> uniform(-1e6, 1e6);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> parts(64);
    for (double& part : parts) part = ToScoreGrid(uniform(random) * std::exp2(-(trial % 40)));
    double forward = 0.0;
    for (const double part : parts) forward += part;
    std::shuffle(parts.begin(), parts.end(), random);
    double shuffled = 0.0;
    for (const double part : parts) shuffled += part;
    INFO("trial ", trial);
    CHECK(forward == shuffled);
  }
}

TEST_CASE("span: the last n elements and slices") {
  const std::vector<int> values = {1, 2, 3, 4};
  const Span<int> span(values);
  CHECK(span.Last(2)[0] == 3);
  CHECK(span.Last(9).size() == 4);
  CHECK(span.Last(0).empty());
  CHECK(span.Slice(1, 3).size() == 2);
  CHECK(span.Slice(1, 3)[1] == 3);
}

TEST_CASE("label: token id + 1, so that 0 stays epsilon") {
  CHECK(ToLabel(0) == 1);
  CHECK(ToSymbol(ToLabel(41)) == 41);
}

TEST_CASE("errors: messages are put together from their parts") {
  CHECK(StrCat("slot ", 3, " has ", 0.5) == std::string("slot 3 has 0.5"));
  const IoError error(2, "lm.bin", "cannot open lm.bin");
  CHECK(error.error_number() == 2);
  CHECK(error.path() == "lm.bin");
}

}  // namespace
}  // namespace lattice_bpd
