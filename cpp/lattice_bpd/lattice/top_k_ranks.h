// Small selections and sorts by counting: an item's rank is the number of items before it. That is
// n^2 comparisons, but in vectors and without branches, which a sort of logits mispredicts.
// Included by each instruction set's file after its target pragma, and by no other.
#ifndef LATTICE_BPD_LATTICE_TOP_K_RANKS_H_
#define LATTICE_BPD_LATTICE_TOP_K_RANKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace lattice_bpd {
namespace {

// More items are sorted.
constexpr std::size_t kMostCounted = 128;

// The k-th largest of n values, 1 <= k <= n; n a multiple of 16, no NaN.
template <typename Isa>
float KthLargestByCounting(const float* values, std::size_t n, std::size_t k) {
  using Floats = typename Isa::Floats;
  constexpr std::size_t kSize = sizeof(Floats) / sizeof(float);
  Floats least = std::numeric_limits<float>::infinity() - Floats{};
  for (std::size_t first = 0; first < n; first += kSize) {
    Floats mine;
    std::memcpy(&mine, values + first, sizeof mine);
    auto above = mine != mine;  // -1 for each larger value
    for (std::size_t j = 0; j < n; ++j) above += values[j] > mine;
    mine = above > -static_cast<std::int32_t>(k) ? mine : least;
    least = mine < least ? mine : least;
  }
  float smallest = least[0];
  for (std::size_t i = 1; i < kSize; ++i) smallest = least[i] < smallest ? least[i] : smallest;
  return smallest;
}

// The k smallest of n different keys, the smallest first. There is space for 7 more keys, which are
// overwritten; `out` has k + 1 entries.
template <typename Isa>
void SortByCounting(std::uint64_t* keys, std::size_t n, std::size_t k, std::uint64_t* out) {
  using Keys = typename Isa::Keys;
  constexpr std::size_t kSize = sizeof(Keys) / sizeof(std::uint64_t);
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63;  // signed numbers compare faster
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i + 1 < kSize; ++i) keys[n + i] = kLast;
  for (std::size_t first = 0; first < n; first += kSize) {
    Keys mine;
    std::memcpy(&mine, keys + first, sizeof mine);
    mine ^= static_cast<std::int64_t>(kSign);
    Keys rank = {};
    for (std::size_t j = 0; j < n; ++j) rank -= static_cast<std::int64_t>(keys[j] ^ kSign) < mine;
    for (std::size_t i = 0; i < kSize; ++i) {
      out[std::min(static_cast<std::size_t>(rank[i]), k)] = keys[first + i];
    }
  }
}

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_TOP_K_RANKS_H_
