// Checksums, half-precision logits and the score grid.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "lattice_bpd/base/checksum.h"
#include "lattice_bpd/base/half.h"
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

}  // namespace
}  // namespace lattice_bpd
