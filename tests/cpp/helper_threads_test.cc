// Tasks on waiting threads: each runs once, the lowest failure is thrown, nothing deadlocks.
#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"
#include "parallel_runs.h"

namespace lattice_bpd {
namespace {

TEST_CASE("every task runs once, on any number of threads, again and again") {
  for (const int num_threads : {1, 2, 3, 8}) {
    for (const std::size_t num_tasks : {0u, 1u, 2u, 7u, 500u}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        CHECK(CountRuns(num_tasks, num_threads) == std::vector<int>(num_tasks, 1));
      }
    }
  }
}

TEST_CASE("the failure of the lowest task is thrown, on any number of threads") {
  for (const int num_threads : {1, 2, 8}) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      const auto fail = [](std::size_t i) {
        if (i >= 30 && i % 10 == 0) throw ValueError(std::to_string(i));
      };
      CHECK_THROWS_WITH_AS(RunParallel(100, num_threads, fail), "30", ValueError);
    }
  }
}

TEST_CASE("calls within calls, and from several threads at once, all end") {
  std::atomic<int> count{0};
  const auto nested = [&count](std::size_t) {
    RunParallel(5, 4, [&count](std::size_t) { ++count; });
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) callers.emplace_back([&] { RunParallel(10, 3, nested); });
  for (std::thread& caller : callers) caller.join();
  CHECK(count == 4 * 10 * 5);
}

#if !defined(__SANITIZE_THREAD__)  // which refuses new threads in a forked child
TEST_CASE("a forked child has threads of its own") {
  CHECK(CountRuns(50, 3) == std::vector<int>(50, 1));
  CHECK(HoldsInForkedChild([] { return CountRuns(50, 3) == std::vector<int>(50, 1); }));
}
#endif

}  // namespace
}  // namespace lattice_bpd
