// Half precision. Both widenings are exact.
#ifndef LATTICE_BPD_BASE_HALF_H_
#define LATTICE_BPD_BASE_HALF_H_

#include <cstdint>
#include <cstring>

namespace lattice_bpd {

inline float BitsToFloat(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float BFloat16ToFloat(std::uint16_t bits) {
  return BitsToFloat(static_cast<std::uint32_t>(bits) << 16);
}

// To nearest, ties to even; what is not a number stays so.
inline std::uint16_t FloatToBFloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded =
      value == value ? bits + 0x7fffu + ((bits >> 16) & 1u) : bits | 0x400000u;
  return static_cast<std::uint16_t>(rounded >> 16);
}

// IEEE 754 binary16, subnormals, infinities and NaN included.
inline float Float16ToFloat(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1fu) return BitsToFloat(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return BitsToFloat(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * BitsToFloat(0x33800000u);  // 2^-24
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_HALF_H_
