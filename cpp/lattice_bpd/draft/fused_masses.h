// What a row is worth, from the scores of its lanes up to the lattice's end: the best of them for
// lists of drafts, ln of the sum of their exponentials for trees.
//
// In an anonymous namespace as all fused_*.h that compute (see fused_search.h).
#ifndef LATTICE_BPD_DRAFT_FUSED_MASSES_H_
#define LATTICE_BPD_DRAFT_FUSED_MASSES_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/fused_workspace.h"

namespace lattice_bpd {
namespace {

// The sum of exp(values[i] - best), to about 1e-11; `size` is a multiple of 8, `best` the largest
// value and finite. Written so that every instruction set adds and multiplies in the same order,
// and so gets the same bits (the core is compiled without contraction to fused multiply-add).
inline double SumExp(const double* values, std::uint32_t size, double best) {
  static_assert(kFusedLanes == 8);
  typedef double Doubles __attribute__((vector_size(64)));
  typedef std::int64_t Integers __attribute__((vector_size(64)));
  constexpr double kSmallest = -64.0;  // exp of it is below what 256 lanes add to a double
  constexpr double kRound = 0x1.8p52;  // adding it leaves an integer in the lowest bits
  constexpr double kLog2E = 0x1.71547652b82fep0;
  constexpr double kLn2High = 0x1.62e42fefa3800p-1;
  constexpr double kLn2Low = 0x1.ef35793c76730p-45;
  // 1/9!, 1/8!, ..: on |r| <= ln(2) / 2 what is left out is below 7e-12.
  constexpr double kFactorials[] = {1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                                    1.0 / 24,     1.0 / 6,     1.0 / 2,    1.0,       1.0};
  Doubles total = {};
  for (std::uint32_t i = 0; i < size; i += 8) {
    Doubles x;
    std::memcpy(&x, values + i, sizeof x);
    x -= best;
    const Doubles smallest = kSmallest - Doubles{};
    x = x > smallest ? x : smallest;
    const Doubles rounded = x * kLog2E + kRound;  // exp(x) = 2^n exp(r)
    const Doubles n = rounded - kRound;
    const Doubles r = (x - n * kLn2High) - n * kLn2Low;
    Doubles power = kFactorials[0] - Doubles{};
    for (int k = 1; k < 10; ++k) power = power * r + kFactorials[k];
    Integers bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    bits = (bits << 52) + (std::int64_t{1023} << 52);
    Doubles scale;
    std::memcpy(&scale, &bits, sizeof scale);
    total += power * scale;
  }
  return ((total[0] + total[4]) + (total[2] + total[6])) +
         ((total[1] + total[5]) + (total[3] + total[7]));
}

// Of all completions the best one.
struct FusedBest {
  static double Of(const double*, std::uint32_t, double best) { return best; }
};

// Of all completions ln of the total mass, on the grid; never below the largest value, which is on
// the grid too.
struct FusedMass {
  static double Of(const double* values, std::uint32_t size, double best) {
    if (!std::isfinite(best)) return best;
    return ToScoreGrid(best + std::log(SumExp(values, size, best)));
  }
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_MASSES_H_
