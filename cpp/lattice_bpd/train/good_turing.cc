#include "lattice_bpd/train/good_turing.h"

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr double kAlmostAll = 0.999;

double Rho(const CountOfCounts& n, int katz_k) {
  int k0 = 1;
  while (k0 <= katz_k && n[k0] == 0) ++k0;
  if (n[k0] == 0) return 0.0;  // no n-gram has a count that is discounted
  return (katz_k + 1.0) * static_cast<double>(n[katz_k + 1]) / (k0 * static_cast<double>(n[k0]));
}

// r* / r.
double AdjustedRatio(const CountOfCounts& n, int r) {
  double adjusted = r + 1.0;
  if (n[r + 1] > 0) adjusted *= static_cast<double>(n[r + 1]);
  if (n[r] > 0) adjusted /= static_cast<double>(n[r]);
  return adjusted / r;
}

double RawDiscount(const CountOfCounts& n, int katz_k, int r) {
  const double rho = Rho(n, katz_k);
  const double discount = AdjustedRatio(n, r) - rho;
  return rho < 1.0 ? discount / (1.0 - rho) : discount;
}

bool IsDiscount(double value) { return value > 0.0 && value < 1.0; }

}  // namespace

CountOfCounts CountCounts(const CountLevel& level) {
  CountOfCounts n{};
  for (const std::uint64_t count : level.count) {
    if (count < n.size()) ++n[count];
  }
  n[0] = 0;
  return n;
}

GoodTuringDiscounts ComputeGoodTuring(const CountOfCounts& n, int katz_k) {
  GoodTuringDiscounts discounts;
  discounts.of_count.assign(katz_k + 1, kAlmostAll);
  discounts.above = kAlmostAll;
  for (int r = 1; r <= katz_k; ++r) {
    const double discount = RawDiscount(n, katz_k, r);
    if (IsDiscount(discount)) discounts.of_count[r] = discount;
  }
  return discounts;
}

std::string DescribeViolations(int order, const CountOfCounts& n, const CountOfCounts& used,
                               int katz_k) {
  std::string faults;
  for (int r = 1; r <= katz_k; ++r) {
    if (used[r] == 0) continue;
    const double discount = RawDiscount(n, katz_k, r);
    if (!IsDiscount(discount)) {
      faults += StrCat("; count ", r, " has discount ", discount, " outside (0, 1), taken as ",
                       kAlmostAll);
    } else if (n[r] == 0 || n[r + 1] == 0) {
      faults += StrCat("; count ", r, " has discount ", discount, " although n_",
                       n[r] == 0 ? r : r + 1, " is 0");
    }
  }
  if (faults.empty()) return faults;
  std::string numbers;
  for (int r = 1; r <= katz_k + 1; ++r) numbers += StrCat(r > 1 ? ", " : "", n[r]);
  return StrCat("Katz: order ", order, " breaks Good-Turing's assumptions (n_1..n_", katz_k + 1,
                " = ", numbers, ")", faults, ". Train on more text, or set katz_k lower");
}

void CheckKatzK(int katz_k) {
  if (katz_k >= 1 && katz_k <= kMaxKatzK) return;
  throw ValueError(StrCat("katz_k is ", katz_k, "; expected 1..", kMaxKatzK,
                          ", the highest count that Good-Turing discounts"));
}

}  // namespace lattice_bpd
