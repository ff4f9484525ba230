// Half-precision logits.
#include <doctest/doctest.h>

#include <cmath>

#include "lattice_bpd/base/half.h"

namespace lattice_bpd {
namespace {

TEST_CASE("half: all 65,536 float16 by their definition (-1)^s 2^(e-15) (1 + f/1024)") {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31u);
    const int fraction = static_cast<int>(bits & 1023u);
    const float value = Float16ToFloat(static_cast<std::uint16_t>(bits));
    if (exponent == 31) {
      CHECK((fraction == 0 ? std::isinf(value) && (value < 0) == (bits >> 15 == 1)
                           : std::isnan(value)));
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    const double expected = (bits & 0x8000u) != 0 ? -magnitude : magnitude;
    INFO("bits ", bits);
    CHECK(static_cast<double>(value) == expected);
  }
}

}  // namespace
}  // namespace lattice_bpd
