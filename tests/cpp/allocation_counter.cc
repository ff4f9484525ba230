#include "allocation_counter.h"

#if defined(__APPLE__)
#include <malloc/malloc.h>
#else
#include <malloc.h>
#endif

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> num_allocations{0};
std::atomic<std::int64_t> live_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};

// What malloc gave a block. No header of our own: sanitizers would not see writes into it.
std::int64_t SizeOf(void* block) {
#if defined(__APPLE__)
  return static_cast<std::int64_t>(malloc_size(block));
#else
  return static_cast<std::int64_t>(malloc_usable_size(block));
#endif
}

void* Allocate(std::size_t size) {
  void* const block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  ++num_allocations;
  const std::int64_t live = live_bytes += SizeOf(block);
  std::int64_t peak = peak_bytes;
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return block;
}

void Free(void* block) noexcept {
  if (block == nullptr) return;
  live_bytes -= SizeOf(block);
  std::free(block);
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void operator delete(void* data) noexcept { Free(data); }
void operator delete[](void* data) noexcept { Free(data); }
void operator delete(void* data, std::size_t) noexcept { Free(data); }
void operator delete[](void* data, std::size_t) noexcept { Free(data); }

namespace lattice_bpd {

AllocationCounter::AllocationCounter()
    : allocations_before_(::num_allocations), bytes_before_(live_bytes) {
  ::peak_bytes = bytes_before_;
}

std::uint64_t AllocationCounter::num_allocations() const {
  return ::num_allocations - allocations_before_;
}

std::int64_t AllocationCounter::peak_bytes() const { return ::peak_bytes - bytes_before_; }

}  // namespace lattice_bpd
