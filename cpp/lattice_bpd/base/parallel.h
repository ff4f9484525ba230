// Runs independent tasks on a few threads, without losing an exception.
#ifndef LATTICE_BPD_BASE_PARALLEL_H_
#define LATTICE_BPD_BASE_PARALLEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

// The number of threads that `requested` means: itself, or where it is 0 every core that this
// thread may use, or those of the thread team (thread_team.h) if they are more. Throws ValueError
// where it is negative or above 1024.
int ResolveThreads(int requested);

// Calls task(0) .. task(num_tasks - 1), each once, on up to num_threads threads. The caller's is
// one of them, the others are those of the thread team if it has any, else our own, which wait for
// the next call afterwards (helper_threads.h). Returns when all have ended. An exception stops the
// tasks not yet begun and is thrown again here: that of the lowest task that failed, whatever the
// number of threads. Where the system gives fewer threads, those it gives do the work. Checks for
// interrupts (interrupts.h) before each task.
void RunParallel(std::size_t num_tasks, int num_threads,
                 const std::function<void(std::size_t)>& task);

// Cuts 0 .. size into at most num_parts ranges of about equal weight, where cumulative_weight
// (size + 1 entries, rising) says what lies before each item. Returns the ranges' bounds.
std::vector<std::size_t> SplitByWeight(Span<std::uint64_t> cumulative_weight,
                                       std::size_t num_parts);
std::vector<std::size_t> SplitByWeight(Span<std::uint32_t> cumulative_weight,
                                       std::size_t num_parts);

// Calls visit(first, last) on ranges that together are all contexts of a trie level, cut so that
// they hold about as many children each.
void RunOverContexts(Span<std::uint32_t> child_begin, int num_threads,
                     const std::function<void(std::size_t, std::size_t)>& visit);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_PARALLEL_H_
