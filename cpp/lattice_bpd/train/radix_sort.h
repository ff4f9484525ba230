// Sorts unsigned integer keys of a known width: radix sort for long runs, std::sort for short ones.
#ifndef LATTICE_BPD_TRAIN_RADIX_SORT_H_
#define LATTICE_BPD_TRAIN_RADIX_SORT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace lattice_bpd {

constexpr int kDigitBits = 8;
constexpr std::size_t kNumDigits = std::size_t{1} << kDigitBits;

// Below this size std::sort is used; on 48-bit keys of real text any bound from 30 to 400 is within
// 10 % of the fastest.
constexpr std::size_t kShortRun = 100;

template <typename Key>
std::size_t DigitAt(Key key, int shift) {
  return static_cast<std::size_t>(key >> shift) & (kNumDigits - 1);
}

// One stable pass by the digit at `shift` from `from` to `to`; false (and no move) where all keys
// have the same digit.
template <typename Key>
bool ScatterByDigit(const Key* from, std::size_t size, int shift, Key* to) {
  std::array<std::size_t, kNumDigits> begin{};
  for (std::size_t i = 0; i < size; ++i) ++begin[DigitAt(from[i], shift)];
  if (begin[DigitAt(from[0], shift)] == size) return false;
  std::size_t sum = 0;
  for (std::size_t& count : begin) sum += std::exchange(count, sum);
  for (std::size_t i = 0; i < size; ++i) to[begin[DigitAt(from[i], shift)]++] = from[i];
  return true;
}

// Sorts keys[0 .. size), all below 2^width. `scratch` grows to `size` where the run is long.
// O(size * width / 8) for long runs, whatever the keys.
template <typename Key>
void SortKeys(Key* keys, std::size_t size, int width, std::vector<Key>* scratch) {
  if (size < kShortRun) {
    std::sort(keys, keys + size);
    return;
  }
  if (scratch->size() < size) scratch->resize(size);
  Key* from = keys;
  Key* to = scratch->data();
  for (int shift = 0; shift < width; shift += kDigitBits) {
    if (ScatterByDigit(from, size, shift, to)) std::swap(from, to);
  }
  if (from != keys) std::copy(from, from + size, keys);
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_RADIX_SORT_H_
