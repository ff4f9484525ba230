// Random numbers that are a function of a key and two indices: no state, so they come out the same
// in any order, on any thread and for any batch size.
//
// A 64-bit counter through the finaliser of splitmix64 (Steele, Lea, Flood 2014), twice: once for
// the row, once for the column.
#ifndef LATTICE_BPD_BASE_KEYED_NOISE_H_
#define LATTICE_BPD_BASE_KEYED_NOISE_H_

#include <cmath>
#include <cstdint>

namespace lattice_bpd {

inline std::uint64_t MixBits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The noise of one row, such as one position of a text.
class NoiseRow {
 public:
  NoiseRow(std::uint64_t key, std::uint64_t row)
      : key_(MixBits(MixBits(key + kStep) + (row + 1) * kStep)) {}

  std::uint64_t Bits(std::uint64_t column) const { return MixBits(key_ + (column + 1) * kStep); }

  // In (0, 1), 53 bits.
  static double ToUniform(std::uint64_t bits) {
    return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
  }
  double Uniform(std::uint64_t column) const { return ToUniform(Bits(column)); }

  // Of the standard Gumbel distribution: argmax of log p + noise is a sample from p.
  static double ToGumbel(std::uint64_t bits) { return -std::log(-std::log(ToUniform(bits))); }
  double Gumbel(std::uint64_t column) const { return ToGumbel(Bits(column)); }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, odd

  std::uint64_t key_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_KEYED_NOISE_H_
