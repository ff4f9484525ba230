// Interrupts stop the thread that enables them and its helpers, and no other thread.
#include "lattice_bpd/base/interrupts.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "lattice_bpd/base/parallel.h"

namespace lattice_bpd {
namespace {

constexpr std::chrono::milliseconds kAlways{0};

[[noreturn]] void Stop() { throw std::runtime_error("stop"); }

}  // namespace

TEST_CASE("without a scope, after one and in another thread nothing stops") {
  CheckInterrupted();
  {
    const InterruptScope scope(Stop, kAlways);
    CHECK_THROWS_WITH(CheckInterrupted(), "stop");
    CHECK_THROWS_WITH(CheckInterrupted(), "stop");  // once stopped, it stays so
    std::thread([] { CheckInterrupted(); }).join();
  }
  CheckInterrupted();
}

TEST_CASE("a scope inside another ends with its own, then the outer one counts again") {
  const InterruptScope outer(Stop, kAlways);
  {
    const InterruptScope inner([] {}, kAlways);
    CheckInterrupted();
  }
  CHECK_THROWS_WITH(CheckInterrupted(), "stop");
}

TEST_CASE("the tasks of all threads end, and what the check threw arrives") {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> calls{0};
    const InterruptScope scope(
        [&] {
          if (++calls > 100) Stop();
        },
        kAlways);
    const auto task = [](std::size_t) {
      for (;;) CheckInterrupted();  // for ever, but for the interrupt
    };
    CHECK_THROWS_WITH(RunParallel(4, 3, task), "stop");
  }
}

TEST_CASE("a counter checks periodically") {
  const InterruptScope scope(Stop, kAlways);
  InterruptCounter counter;
  counter.Count();
  CHECK_THROWS_WITH(counter.Count(std::size_t{1} << 17), "stop");
}

}  // namespace lattice_bpd
