#include "lattice_bpd/lattice/sample_token.h"

#include <cmath>
#include <limits>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// -log(-log u) < -log(1 - u), and 1 - u is at least 2^-(n + 1) where u's bits begin with n ones.
double BoundGumbel(std::uint64_t bits) {
  constexpr double kLn2 = 0x1.62e42fefa39f0p-1;  // rounded up
  const std::uint64_t zeros = ~(bits | 0xfff);   // of the 52 bits that count
  const int ones = zeros == 0 ? 52 : __builtin_clzll(zeros);
  return (ones + 1) * kLn2;
}

}  // namespace

TokenId SampleToken(Span<float> logits, double scale, const NoiseRow& noise) {
  double best = kMinusInfinity;
  std::size_t chosen = logits.size();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double score = scale * static_cast<double>(logits[i]);
    if (!(score < std::numeric_limits<double>::infinity())) {
      throw ValueError(
          StrCat("the logit of token ", i, " is ", logits[i], "; expected numbers below infinity"));
    }
    const std::uint64_t bits = noise.Bits(i);
    if (score + BoundGumbel(bits) < best) continue;
    const double value = score + NoiseRow::ToGumbel(bits);
    if (value > best) {
      best = value;
      chosen = i;
    }
  }
  if (chosen == logits.size()) {
    throw ValueError(
        StrCat("found ", logits.size(),
               " logits, none of them above -inf; expected a token that may be sampled"));
  }
  return static_cast<TokenId>(chosen);
}

}  // namespace lattice_bpd
