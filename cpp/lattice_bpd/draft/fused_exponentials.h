// Exponentials and logarithms, eight at a time, for masses (fused_masses.h).
//
// All that is done is written out, so that every instruction set adds and multiplies in the same
// order, and so gets the same bits (the core is compiled without contraction to fused
// multiply-add). In an anonymous namespace as all fused_*.h that compute (see fused_search.h).
#ifndef LATTICE_BPD_DRAFT_FUSED_EXPONENTIALS_H_
#define LATTICE_BPD_DRAFT_FUSED_EXPONENTIALS_H_

#include <cstdint>
#include <cstring>
#include <limits>

#include "lattice_bpd/draft/fused_workspace.h"

namespace lattice_bpd {
namespace {

typedef double Doubles __attribute__((vector_size(64)));
typedef std::uint64_t Integers __attribute__((vector_size(64)));
static_assert(kFusedLanes == 8);

// By pointer, since how vectors are returned depends on the instruction set.
template <typename From, typename To>
void CopyBits(const From* from, To* to) {
  std::memcpy(to, from, sizeof *to);
}

// Each exp(values[i] - base), to about 1e-12 of itself; `size` is rounded up to a multiple of 8.
// What would be below 2^-1021 is 0, above 2^1000 infinite.
inline void TakeExponentials(const double* values, std::uint32_t size, double base, double* out) {
  constexpr double kLog2E = 0x1.71547652b82fep0;
  constexpr double kSmallest = -1021.0, kLargest = 1000.0;
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  constexpr double kRound = 0x1.8p52;  // adding it leaves an integer in the lowest bits
  // (2^f - 1) / f on |f| <= 1/2, fitted so that 2^f is off by 8e-13 of itself at most.
  constexpr double kPowers[] = {0x1.61c4f06724400p-20, 0x1.00d853a787a00p-16, 0x1.430aa884438a0p-13,
                                0x1.5d874d06478a0p-10, 0x1.3b2ab5ed6ddccp-7,  0x1.c6b08dced4154p-5,
                                0x1.ebfbdff8edeaep-3,  0x1.62e42fef89d16p-1,  1.0};
  for (std::uint32_t i = 0; i < size; i += 8) {
    Doubles x;
    CopyBits(values + i, &x);
    x = (x - base) * kLog2E;  // 2^x = 2^n 2^f
    const Doubles smallest = kSmallest - Doubles{}, largest = kLargest - Doubles{};
    x = x > smallest ? x : smallest;
    x = x < largest ? x : largest;
    const Doubles rounded = x + kRound;
    const Doubles f = x - (rounded - kRound);
    Doubles power = kPowers[0] - Doubles{};
    for (int k = 1; k < 9; ++k) power = power * f + kPowers[k];
    Integers bits, n;
    CopyBits(&power, &bits);
    CopyBits(&rounded, &n);
    bits += n << 52;  // into the exponent
    CopyBits(&bits, &power);
    power = x > smallest ? power : Doubles{};
    power = x < largest ? power : kInfinite - Doubles{};
    std::memcpy(out + i, &power, sizeof power);
  }
}

// ln of each of eight positive normal numbers, to about 1e-12.
inline void TakeLogs(Doubles* values) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  constexpr std::uint64_t kRootOfHalf = 0x3fe6a09e667f3bcd;  // bits of it
  constexpr std::uint64_t kBias = 1023;                      // so that exponents are not negative
  constexpr std::uint64_t kTwo52 = 0x4330000000000000;       // bits of 2^52
  Integers bits;
  CopyBits(values, &bits);
  // value = 2^exponent m, 0.7 < m < 1.5
  Integers exponent = (bits - kRootOfHalf + (kBias << 52)) >> 52;
  bits -= (exponent - kBias) << 52;
  exponent |= kTwo52;
  Doubles m, n;
  CopyBits(&bits, &m);
  CopyBits(&exponent, &n);
  const Doubles f = (m - 1.0) / (m + 1.0);  // ln m = 2 artanh f
  const Doubles square = f * f;
  Doubles series = 2.0 / 13 - Doubles{};
  for (int k = 11; k > 0; k -= 2) series = series * square + 2.0 / k;
  *values = (n - (0x1p52 + kBias)) * kLn2 + f * series;
}

inline void TakeLogs(double* values) {
  Doubles logs;
  CopyBits(values, &logs);
  TakeLogs(&logs);
  std::memcpy(values, &logs, sizeof logs);
}

// ToScoreGrid of each of eight (a zero may change its sign).
inline void RoundToScoreGrid(Doubles* values) {
  constexpr double kTwo52 = 0x1p52;  // from here on all numbers are integers
  const Doubles scaled = *values * 0x1p24;
  const Doubles shift = scaled < 0.0 ? -kTwo52 - Doubles{} : kTwo52 - Doubles{};
  const Doubles rounded = (scaled + shift) - shift;
  *values = ((scaled < kTwo52) & (scaled > -kTwo52) ? rounded : scaled) * 0x1p-24;
}

// The sum of `size` numbers, a multiple of 8.
inline double Sum(const double* values, std::uint32_t size) {
  Doubles total = {};
  for (std::uint32_t i = 0; i < size; i += 8) {
    Doubles x;
    CopyBits(values + i, &x);
    total += x;
  }
  return ((total[0] + total[4]) + (total[2] + total[6])) +
         ((total[1] + total[5]) + (total[3] + total[7]));
}

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_EXPONENTIALS_H_
