#include "lattice_bpd/train/discounts.h"

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr double kFallbackOne = 0.6;
constexpr AbsoluteDiscounts kFallbackThree = {{0.0, 0.5, 1.0, 1.5}};

double Ratio(const CountOfCounts& n) {
  const auto n1 = static_cast<double>(n[1]);
  return n1 / (n1 + 2.0 * static_cast<double>(n[2]));
}

}  // namespace

AbsoluteDiscounts OneDiscount(const CountOfCounts& n) {
  const double discount = n[1] == 0 || n[2] == 0 ? kFallbackOne : Ratio(n);
  return {{0.0, discount, discount, discount}};
}

AbsoluteDiscounts ThreeDiscounts(int order, const CountOfCounts& n, TrainReport* report) {
  AbsoluteDiscounts discounts;
  bool good = n[1] > 0 && n[2] > 0 && n[3] > 0;
  for (int r = 1; r <= 3 && good; ++r) {
    const double next = static_cast<double>(n[r + 1]);
    discounts.of_count[r] = r - (r + 1) * Ratio(n) * next / static_cast<double>(n[r]);
    good = discounts.of_count[r] >= 0.0 && discounts.of_count[r] <= r;
  }
  if (good) return discounts;
  if (report != nullptr) {
    report->Add(StrCat("Kneser-Ney: order ", order, " has counts of counts n_1..n_4 = ", n[1], ", ",
                       n[2], ", ", n[3], ", ", n[4],
                       ", from which no discounts in 0..r follow; taken as 0.5, 1 and 1.5. Train "
                       "on more text, or take smoothing \"witten_bell\""));
  }
  return kFallbackThree;
}

}  // namespace lattice_bpd
