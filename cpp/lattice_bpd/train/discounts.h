// Absolute discounts: constants subtracted from counts in every context.
#ifndef LATTICE_BPD_TRAIN_DISCOUNTS_H_
#define LATTICE_BPD_TRAIN_DISCOUNTS_H_

#include <algorithm>
#include <cstdint>

#include "lattice_bpd/train/estimate_options.h"
#include "lattice_bpd/train/good_turing.h"

namespace lattice_bpd {

struct AbsoluteDiscounts {
  double of_count[4] = {};  // [3] is for 3 and above

  double operator()(std::uint64_t count) const {
    return of_count[std::min<std::uint64_t>(count, 3)];
  }
};

// One discount for every count (Ney, Essen and Kneser 1994), with n_r the counts of counts:
//   D = n_1 / (n_1 + 2 n_2), or 0.6 where n_1 or n_2 is 0 (as OpenGrm NGram has it)
AbsoluteDiscounts OneDiscount(const CountOfCounts& n);

// Three discounts (Chen and Goodman 1998, section 4.1.6):
//   Y = n_1 / (n_1 + 2 n_2)     D_r = r - (r + 1) Y n_{r+1} / n_r     for r = 1, 2, 3 and above
// Where one is undefined or outside 0..r the order gets 0.5, 1 and 1.5 (lmplz's fallback), and
// `report` a warning that names the order and n_1 .. n_4.
AbsoluteDiscounts ThreeDiscounts(int order, const CountOfCounts& n, TrainReport* report);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_DISCOUNTS_H_
