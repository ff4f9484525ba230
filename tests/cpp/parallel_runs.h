// What the tests of threads share: how often tasks ran, and checks in a forked child.
#ifndef LATTICE_BPD_TESTS_CPP_PARALLEL_RUNS_H_
#define LATTICE_BPD_TESTS_CPP_PARALLEL_RUNS_H_

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <vector>

#include "lattice_bpd/base/parallel.h"

namespace lattice_bpd {

// How often each of n tasks ran.
inline std::vector<int> CountRuns(std::size_t num_tasks, int num_threads) {
  std::vector<std::atomic<int>> runs(num_tasks);
  RunParallel(num_tasks, num_threads, [&runs](std::size_t i) { ++runs[i]; });
  return {runs.begin(), runs.end()};
}

// Whether check() returns true in a forked child; false where that hangs or dies, or no child can
// be had.
template <typename Check>
bool HoldsInForkedChild(const Check& check) {
  const pid_t child = ::fork();
  if (child < 0) return false;
  if (child == 0) {
    ::alarm(20);  // a hang is a failure
    ::_exit(check() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_CPP_PARALLEL_RUNS_H_
