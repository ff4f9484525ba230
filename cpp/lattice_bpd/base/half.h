// Half precision. Both widenings are exact.
#ifndef LATTICE_BPD_BASE_HALF_H_
#define LATTICE_BPD_BASE_HALF_H_

#include <cstdint>
#include <cstring>

#include "lattice_bpd/base/array_view.h"

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

// Likewise, to IEEE 754 binary16. Subnormals are multiples of 2^-24, the spacing of floats at 0.5.
inline std::uint16_t FloatToFloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (bits < 0x38800000u) {
    const float sum = BitsToFloat(bits) + 0.5f;
    std::memcpy(&bits, &sum, sizeof bits);
    return static_cast<std::uint16_t>(sign | (bits - 0x3f000000u));
  }
  bits += 0xc8000fffu + (bits >> 13 & 1u);  // the exponent's offset, and half of the last bit
  return static_cast<std::uint16_t>(sign | bits >> 13);
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

inline float HalfToFloat(FloatType type, std::uint16_t bits) {
  return type == FloatType::kFloat16 ? Float16ToFloat(bits) : BFloat16ToFloat(bits);
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_HALF_H_
