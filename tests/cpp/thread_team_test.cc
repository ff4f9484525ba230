// RunParallel on the threads of another library, which a fake stands for.
#include "lattice_bpd/base/thread_team.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"
#include "parallel_runs.h"

namespace lattice_bpd {
namespace {

std::atomic<std::uint32_t> g_size{1};
std::atomic<int> g_calls{0};
std::atomic<std::int64_t> g_ranges{0};  // of the last call
std::atomic<bool> g_fails{false};

// Each index of the range on a thread of its own; or, where it fails, only the first one.
std::int32_t ParallelFor(std::int64_t begin, std::int64_t end, std::int64_t grain,
                         ThreadTeam::Task task, void* context) {
  ++g_calls;
  g_ranges = end - begin;
  CHECK(grain == 1);
  if (g_fails) return 1;
  std::vector<std::thread> threads;
  for (std::int64_t i = begin; i < end; ++i) threads.emplace_back(task, i, i + 1, context);
  for (std::thread& thread : threads) thread.join();
  return 0;
}

std::int32_t CountThreads(std::uint32_t* count) {
  *count = g_size;
  return 0;
}

// A team of so many threads until the end of the test.
class WithTeam {
 public:
  explicit WithTeam(std::uint32_t size) {
    g_size = size;
    g_calls = 0;
    SetThreadTeam({&ParallelFor, &CountThreads});
  }
  ~WithTeam() {
    g_size = 1;
    g_fails = false;
  }
};

TEST_CASE("tasks run once each, on no more threads than the team and the call have") {
  const WithTeam team(3);
  CHECK(CountTeamThreads() == 3);
  for (const int num_threads : {2, 3, 8}) {
    CHECK(CountRuns(500, num_threads) == std::vector<int>(500, 1));
    CHECK(g_ranges == std::min(num_threads, 3));
  }
  CHECK(g_calls == 3);
  CHECK(ResolveThreads(0) >= 3);
}

TEST_CASE("a call for one thread, a single task or none, and a team of one leave it alone") {
  const WithTeam team(3);
  CHECK(CountRuns(500, 1) == std::vector<int>(500, 1));
  CHECK(CountRuns(1, 8) == std::vector<int>(1, 1));
  CHECK(CountRuns(0, 8).empty());
  g_size = 1;
  CHECK(CountRuns(500, 2) == std::vector<int>(500, 1));
  CHECK(g_calls == 0);
}

TEST_CASE("the failure of the lowest task is thrown, and a team that fails leaves nothing undone") {
  const WithTeam team(4);
  const auto fail = [](std::size_t i) {
    if (i >= 30 && i % 10 == 0) throw ValueError(std::to_string(i));
  };
  for (const bool team_fails : {false, true}) {
    g_fails = team_fails;
    CHECK_THROWS_WITH_AS(RunParallel(100, 4, fail), "30", ValueError);
    CHECK(CountRuns(500, 4) == std::vector<int>(500, 1));
  }
  CHECK(g_calls == 4);
}

#if !defined(__SANITIZE_THREAD__)  // which refuses new threads in a forked child
TEST_CASE("a forked child, which has none of the team's threads, has threads of its own") {
  const WithTeam team(3);
  CHECK(HoldsInForkedChild([] {
    return CountRuns(50, 3) == std::vector<int>(50, 1) && g_calls == 0 && CountTeamThreads() == 1;
  }));
}
#endif

}  // namespace
}  // namespace lattice_bpd
