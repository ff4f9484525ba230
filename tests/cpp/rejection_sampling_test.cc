// Rejection sampling at one position, by hand; test_sampling.py compares distributions.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lattice/rejection_sampling.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

using TokenIds = std::vector<TokenId>;
using Probs = std::vector<double>;

constexpr float kMasked = -std::numeric_limits<float>::infinity();

std::vector<float> LogitsOf(const Probs& probs) {
  std::vector<float> logits;
  for (const double prob : probs) {
    logits.push_back(prob > 0.0 ? static_cast<float>(std::log(prob)) : kMasked);
  }
  return logits;
}

// A key whose noise has uniform numbers within these limits, column by column.
NoiseRow NoiseWithin(const std::vector<std::array<double, 2>>& limits) {
  for (std::uint64_t key = 0;; ++key) {
    const NoiseRow noise(key, 0);
    bool fits = true;
    for (std::size_t i = 0; i < limits.size(); ++i) {
      const double uniform = noise.Uniform(i);
      fits = fits && limits[i][0] <= uniform && uniform < limits[i][1];
    }
    if (fits) return noise;
  }
}

TokenId Choose(const Probs& target, const TokenIds& samples, const TokenIds& ids,
               const Probs& probs, const NoiseRow& noise, double lenience = 1.0) {
  const std::vector<float> logits = LogitsOf(target);
  return RejectionSample(logits, samples, {ids, probs}, noise, lenience);
}

TEST_CASE("a sample is accepted with probability r / q") {
  // r(1) / q(1) = 0.2 / 0.8 = 1/4
  const Probs target = {0.5, 0.2, 0.3}, probs = {0.2, 0.8};
  const TokenIds ids = {0, 1};
  CHECK(Choose(target, {1}, ids, probs, NoiseWithin({{0.20, 0.249}})) == 1);
  // rejected: r becomes (0.3, 0, 0.3) / 0.6, of which column 1 samples
  CHECK(Choose(target, {1}, ids, probs, NoiseWithin({{0.251, 0.3}, {0.0, 0.499}})) == 0);
  CHECK(Choose(target, {1}, ids, probs, NoiseWithin({{0.251, 0.3}, {0.501, 1.0}})) == 2);
  // a token that the target wants more than the drafts is always accepted
  CHECK(Choose(target, {0}, ids, probs, NoiseWithin({{0.99, 1.0}})) == 0);
}

TEST_CASE("a second sample is judged by what is left of both distributions") {
  // After sample 0 of q = (0.6, 0.3, 0.1) is rejected, r = (0.2, 0.5, 0.3) is (0, 0.2, 0.2) / 0.4
  // and q is (0, 0.75, 0.25): sample 1 is accepted with probability 0.5 / 0.75 = 2/3.
  const Probs target = {0.2, 0.5, 0.3}, probs = {0.6, 0.3, 0.1};
  const TokenIds ids = {0, 1, 2}, samples = {0, 1};
  const std::array<double, 2> rejects = {0.34, 0.4};  // above 0.2 / 0.6
  CHECK(Choose(target, samples, ids, probs, NoiseWithin({rejects, {0.60, 0.666}})) == 1);
  // After both, r = (0, 0, 0.5 - 0.25): only token 2 is left.
  CHECK(Choose(target, samples, ids, probs, NoiseWithin({rejects, {0.667, 0.7}})) == 2);
  // Of q = (5, 3, 1, 1) / 10 and r = (2, 2, 2, 4) / 10 the first leaves (0, 0, 1, 3) / 4 and
  // (0, 3, 1, 1) / 5, the second (0, 0, 0.05, 0.55): token 2 with probability 1/12, by column 2.
  const Probs wide = {0.2, 0.2, 0.2, 0.4}, drafted = {0.5, 0.3, 0.1, 0.1};
  const std::array<double, 2> first = {0.41, 0.5}, second = {0.3, 0.9};
  CHECK(Choose(wide, samples, {0, 1, 2, 3}, drafted, NoiseWithin({first, second, {0.0, 0.08}})) ==
        2);
  CHECK(Choose(wide, samples, {0, 1, 2, 3}, drafted, NoiseWithin({first, second, {0.09, 0.18}})) ==
        3);
}

TEST_CASE("with a lenience l a sample is accepted with probability r / (l q)") {
  // r(1) / (l q(1)) = 0.2 / (0.5 * 0.8) = 1/2; what is left after a rejection does not depend on l
  const Probs target = {0.5, 0.2, 0.3}, probs = {0.2, 0.8};
  const TokenIds ids = {0, 1};
  CHECK(Choose(target, {1}, ids, probs, NoiseWithin({{0.40, 0.499}}), 0.5) == 1);
  CHECK(Choose(target, {1}, ids, probs, NoiseWithin({{0.501, 0.6}, {0.0, 0.499}}), 0.5) == 0);
  CHECK(Choose(target, {1}, ids, probs, NoiseWithin({{0.501, 0.6}, {0.501, 1.0}}), 0.5) == 2);
}

TEST_CASE("what cannot be chosen from is refused") {
  const NoiseRow noise(1, 1);
  const Probs target = {0.5, 0.5}, even = {0.5, 0.5};
  const TokenIds ids = {0, 1};
  const auto choose = [&](const std::vector<float>& logits, const TokenIds& samples,
                          const TokenIds& from, const Probs& probs) {
    return RejectionSample(logits, samples, {from, probs}, noise);
  };
  const std::vector<float> logits = LogitsOf(target);
  CHECK_THROWS_WITH_AS(choose(logits, {7}, ids, even), doctest::Contains("draft token 7"),
                       ValueError);
  // r = q but for token 0, which is rejected with certainty where the target never takes it
  CHECK_THROWS_WITH_AS(choose({kMasked, 0.0f}, {0, 0}, ids, even),
                       doctest::Contains("draft token 0 has no probability left"), ValueError);
}

}  // namespace
}  // namespace lattice_bpd
