// Counts what this test program allocates with operator new.
#ifndef LATTICE_BPD_TESTS_ALLOCATION_COUNTER_H_
#define LATTICE_BPD_TESTS_ALLOCATION_COUNTER_H_

#include <cstddef>
#include <cstdint>

namespace lattice_bpd {

// Of all threads, from its construction on.
class AllocationCounter {
 public:
  AllocationCounter();

  std::uint64_t num_allocations() const;
  std::int64_t peak_bytes() const;  // above what was allocated at construction

 private:
  std::uint64_t allocations_before_;
  std::int64_t bytes_before_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_ALLOCATION_COUNTER_H_
