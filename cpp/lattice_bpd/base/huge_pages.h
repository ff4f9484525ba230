// Memory in large pages where the system has them: a search that reads at random over tens of
// megabytes waits as much for page tables as for memory.
#ifndef LATTICE_BPD_BASE_HUGE_PAGES_H_
#define LATTICE_BPD_BASE_HUGE_PAGES_H_

#include <cstddef>

namespace lattice_bpd {

// What systems call a huge page on x86-64 and, with 4 KiB pages, on ARM.
constexpr std::size_t kHugePage = std::size_t{1} << 21;

// Requests huge pages for a mapping; some systems and file systems ignore it.
// Files get them if their pages come into memory in runs of kHugePage: by reading ahead, which
// this call widens, or by writes of that size.
void PreferHugePages(const void* data, std::size_t size);

// The same for memory of this process that is in use already: moves it there at once.
void MoveToHugePages(const void* data, std::size_t size);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_HUGE_PAGES_H_
