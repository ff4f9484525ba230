// How often nodes of a draft tree are kept, by the probability that the tree gives them.
#ifndef LATTICE_BPD_DECODE_CALIBRATION_H_
#define LATTICE_BPD_DECODE_CALIBRATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

// Learns from trees that were verified; old ones fade. Heads and LM are too sure of themselves, or
// not sure enough, and each model in its own way.
class Calibration {
 public:
  Calibration();

  // The probability that each node is kept: falling, from falling natural logs.
  std::vector<double> Probabilities(Span<float> log_probs) const;

  // Nodes that the first 1, 2, .. are expected to keep: the sums of Probabilities.
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
