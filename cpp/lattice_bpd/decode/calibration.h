// Acceptance rates of draft tree nodes by the probability that the tree assigns to them.
#ifndef LATTICE_BPD_DECODE_CALIBRATION_H_
#define LATTICE_BPD_DECODE_CALIBRATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

// Learns from verified trees, with exponential decay. Heads and LM are miscalibrated, and each
// model differently.
class Calibration {
 public:
  Calibration();

  // The probability that each node is accepted: decreasing, from decreasing natural logs.
  std::vector<double> Probabilities(Span<float> log_probs) const;

  // Expected number of accepted nodes among the first 1, 2, ..: the sums of Probabilities.
  std::vector<double> Expected(Span<float> log_probs) const;

  // One verified tree: what it gave each node, and 1 where that was kept. Throws ValueError where
  // these differ in number.
  void Add(Span<float> log_probs, Span<std::uint8_t> kept);

 private:
  static constexpr std::size_t kBins = 16;

  static std::size_t BinOf(float log_prob);

  std::array<double, kBins> kept_{};
  std::array<double, kBins> seen_{};
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DECODE_CALIBRATION_H_
