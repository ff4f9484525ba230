#include "lattice_bpd/base/checksum.h"

#include <cstring>

namespace lattice_bpd {
namespace {

constexpr int kLanes = 4;
constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, odd

std::uint64_t Mix(std::uint64_t hash, std::uint64_t word) {
  const std::uint64_t product = (hash ^ word) * kMultiplier;
  return (product << 29) | (product >> 35);
}

}  // namespace

std::uint64_t Checksum(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::uint64_t lanes[kLanes] = {size, 1, 2, 3};
  std::uint64_t words[kLanes];
  std::size_t at = 0;
  for (; at + sizeof words <= size; at += sizeof words) {
    std::memcpy(words, bytes + at, sizeof words);
    for (int i = 0; i < kLanes; ++i) lanes[i] = Mix(lanes[i], words[i]);
  }
  std::memset(words, 0, sizeof words);
  if (at < size) std::memcpy(words, bytes + at, size - at);
  std::uint64_t hash = size;
  for (int i = 0; i < kLanes; ++i) hash = Mix(hash, Mix(lanes[i], words[i]));
  return hash;
}

}  // namespace lattice_bpd
