#include "lattice_bpd/decode/calibration.h"

#include <algorithm>
#include <cmath>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr double kWidth = 0.5;    // nats of a bin
constexpr double kPrior = 2.0;    // nodes that the tree's own probability counts for
constexpr double kForget = 0.99;  // what counts keep from one tree to the next

}  // namespace

Calibration::Calibration() { seen_.fill(kPrior); }

std::size_t Calibration::BinOf(float log_prob) {
  const double falling = log_prob < 0.0F ? -log_prob / kWidth : 0.0;
  return falling < kBins - 1 ? static_cast<std::size_t>(falling) : kBins - 1;
}

std::vector<double> Calibration::Probabilities(Span<float> log_probs) const {
  std::vector<double> probabilities;
  probabilities.reserve(log_probs.size());
  double least = 1.0;
  for (const float log_prob : log_probs) {
    const std::size_t bin = BinOf(log_prob);
    const double own = std::exp(std::min(static_cast<double>(log_prob), 0.0));
    least = std::min(least, (kPrior * own + kept_[bin]) / seen_[bin]);
    probabilities.push_back(least);
  }
  return probabilities;
}

std::vector<double> Calibration::Expected(Span<float> log_probs) const {
  std::vector<double> expected = Probabilities(log_probs);
  for (std::size_t i = 1; i < expected.size(); ++i) expected[i] += expected[i - 1];
  return expected;
}

void Calibration::Add(Span<float> log_probs, Span<std::uint8_t> kept) {
  if (log_probs.size() != kept.size()) {
    throw ValueError(StrCat("Calibration: ", kept.size(), " marks for ", log_probs.size(),
                            " nodes; expected one for each"));
  }
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    kept_[bin] *= kForget;
    seen_[bin] = kForget * seen_[bin] + (1.0 - kForget) * kPrior;
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::size_t bin = BinOf(log_probs[i]);
    kept_[bin] += kept[i];
    seen_[bin] += 1.0;
  }
}

}  // namespace lattice_bpd
