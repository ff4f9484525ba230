#include "lattice_bpd/base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace lattice_bpd {
namespace {

#if defined(__linux__)

#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // Linux 6.1; older headers lack it, older systems refuse it
#endif

// Gives the advice for the huge pages that lie wholly in the memory.
void Advise(const void* data, std::size_t size, int advice) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t last = (begin + size) / kHugePage * kHugePage;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, advice);
}

#endif

}  // namespace

void PreferHugePages([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t size) {
#if defined(__linux__)
  Advise(data, size, MADV_HUGEPAGE);
#endif
}

void MoveToHugePages([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t size) {
#if defined(__linux__)
  Advise(data, size, MADV_HUGEPAGE);
  Advise(data, size, MADV_COLLAPSE);
#endif
}

}  // namespace lattice_bpd
