// RunParallel on threads of its own and on those of another library, which a fake stands for.
#include "lattice_bpd/base/thread_team.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/parallel.h"

namespace lattice_bpd {
namespace {

// How often each of n tasks ran.
std::vector<int> CountRuns(std::size_t num_tasks, int num_threads) {
  std::vector<std::atomic<int>> runs(num_tasks);
  RunParallel(num_tasks, num_threads, [&runs](std::size_t i) { ++runs[i]; });
  return {runs.begin(), runs.end()};
}

TEST_CASE(
    "every task runs once, and the failure of the lowest is thrown, on any number of threads") {
  const auto fail = [](std::size_t i) {
    if (i >= 30 && i % 10 == 0) throw ValueError(std::to_string(i));
  };
  for (const int num_threads : {1, 2, 8}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      for (const std::size_t num_tasks : {0u, 1u, 7u, 500u}) {
        CHECK(CountRuns(num_tasks, num_threads) == std::vector<int>(num_tasks, 1));
      }
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

TEST_CASE("an interrupt ends the tasks of all threads, and no other thread's") {
  const auto stop = [] { throw std::runtime_error("stop"); };
  constexpr std::chrono::milliseconds kAlways{0};
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> calls{0};
    const InterruptScope scope(
        [&] {
          if (++calls > 100) stop();
        },
        kAlways);
    const auto task = [](std::size_t) {
      for (;;) CheckInterrupted();  // for ever, but for the interrupt
    };
    CHECK_THROWS_WITH(RunParallel(4, 3, task), "stop");
    std::thread([] { CheckInterrupted(); }).join();
  }
  CheckInterrupted();
  const InterruptScope scope(stop, kAlways);
  InterruptCounter counter;
  counter.Count();
  CHECK_THROWS_WITH(counter.Count(std::size_t{1} << 17), "stop");
}

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

TEST_CASE("a team that fails leaves nothing undone") {
  const WithTeam team(4);
  g_fails = true;
  CHECK(CountRuns(500, 4) == std::vector<int>(500, 1));
  CHECK(g_calls == 1);
}

#if !defined(__SANITIZE_THREAD__)  // which refuses new threads in a forked child
TEST_CASE("a forked child, which has none of the team's threads, has threads of its own") {
  const WithTeam team(3);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(20);  // a hang is a failure
    const bool right = CountRuns(50, 3) == std::vector<int>(50, 1);
    ::_exit(right && g_calls == 0 && CountTeamThreads() == 1 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}
#endif

}  // namespace
}  // namespace lattice_bpd
