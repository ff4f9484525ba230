// Good-Turing discounts from counts of counts: how much of its count a rare n-gram keeps.
#ifndef LATTICE_BPD_TRAIN_GOOD_TURING_H_
#define LATTICE_BPD_TRAIN_GOOD_TURING_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lattice_bpd/train/ngram_counts.h"

namespace lattice_bpd {

constexpr int kMaxKatzK = 32;

// n[r]: number of different n-grams of one order that occur r times, for r = 1 .. kMaxKatzK + 1;
// n[0] stays 0.
using CountOfCounts = std::array<std::uint64_t, kMaxKatzK + 2>;

CountOfCounts CountCounts(const CountLevel& level);

// What Katz smoothing multiplies a count of `level` by.
struct GoodTuringDiscounts {
  std::vector<double> of_count;  // [r] for r = 0 .. katz_k; [0] is not used
  double above = 1.0;            // for larger counts

  double operator()(std::uint64_t count) const {
    return count < of_count.size() ? of_count[count] : above;
  }
};

// Discounts d_r of counts 1 .. K = katz_k of one order (Katz 1987; OpenGrm NGram's treatment):
//
//   k0  = smallest r <= K with n_r > 0, else K + 1
//   rho = (K + 1) n_{K+1} / (k0 n_{k0})
//   r*  = (r + 1) n_{r+1} / n_r, where an n that is 0 is left out of the product
//   d_r = (r* / r - rho) / (1 - rho), without the division where rho >= 1
//
// A d_r outside (0, 1) breaks Good-Turing's assumptions and is set to 0.999; counts above K keep
// 0.999 too, so that every context gives at least 0.1 % to its backoff.
GoodTuringDiscounts ComputeGoodTuring(const CountOfCounts& n, int katz_k);

// One line that names the order and the numbers where a count that n-grams of this order have
// (`used`) has no d_r in (0, 1), or rests on an n_{r+1} of 0; empty where all is well.
std::string DescribeViolations(int order, const CountOfCounts& n, const CountOfCounts& used,
                               int katz_k);

// Throws ValueError where katz_k is not in 1..32.
void CheckKatzK(int katz_k);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_GOOD_TURING_H_
