#include "lattice_bpd/base/parallel.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/helper_threads.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/thread_team.h"

namespace lattice_bpd {
namespace {

constexpr int kMaxThreads = 1024;

// The cores this thread may use; 0 where the system does not say.
int CountCores() {
#ifdef __linux__  // hardware_concurrency reads a file there, and counts cores we may not use
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

// The tasks not yet begun, and the exception of the lowest of those that failed. Tasks are begun
// in order, so that every task below a failed one runs: which exception it is does not depend on
// the threads.
class TaskQueue {
 public:
  TaskQueue(std::size_t num_tasks, const std::function<void(std::size_t)>& task)
      : num_tasks_(num_tasks), task_(task) {}

  void Work() noexcept {
    for (std::size_t i = next_++; i < num_tasks_; i = next_++) {
      try {
        CheckInterrupted();
        task_(i);
      } catch (...) {
        Fail(i, std::current_exception());
        return;
      }
    }
  }

  void RethrowError() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void Fail(std::size_t task, std::exception_ptr error) noexcept {
    next_ = num_tasks_;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ && failed_ < task) return;
    failed_ = task;
    error_ = std::move(error);
  }

  const std::size_t num_tasks_;
  const std::function<void(std::size_t)>& task_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::size_t failed_ = 0;
  std::exception_ptr error_;
};

template <typename Weight>
std::vector<std::size_t> Split(Span<Weight> cumulative, std::size_t num_parts) {
  const std::size_t size = cumulative.size() - 1;
  const double first = static_cast<double>(cumulative[0]);
  const double total = static_cast<double>(cumulative[size]) - first;
  std::vector<std::size_t> bounds = {0};
  for (std::size_t part = 1; part < num_parts; ++part) {
    const double target = first + total * static_cast<double>(part) / num_parts;
    const Weight* at = std::lower_bound(cumulative.begin(), cumulative.end(), target);
    const std::size_t bound = std::min<std::size_t>(at - cumulative.begin(), size);
    if (bound > bounds.back()) bounds.push_back(bound);
  }
  if (size > bounds.back()) bounds.push_back(size);
  return bounds;
}

}  // namespace

int ResolveThreads(int requested) {
  if (requested < 0 || requested > kMaxThreads) {
    throw ValueError(
        StrCat("threads is ", requested, "; expected 1..", kMaxThreads, ", or 0 for every core"));
  }
  if (requested > 0) return requested;
  return std::clamp(std::max(CountCores(), CountTeamThreads()), 1, kMaxThreads);
}

void RunParallel(std::size_t num_tasks, int num_threads,
                 const std::function<void(std::size_t)>& task) {
  TaskQueue queue(num_tasks, task);
  const std::size_t wanted = std::min<std::size_t>(num_threads, num_tasks);
  InterruptScope* const scope = InterruptScope::Current();
  const std::function<void()> work = [&queue, scope] {
    const InheritedInterrupts inherited(scope);
    queue.Work();
  };
  if (wanted <= 1) {
    queue.Work();
  } else if (const std::size_t team = CountTeamThreads(); team > 1) {
    RunOnTeam(std::min(wanted, team) - 1, work);
  } else {
    HelperThreads::OfProcess().Run(wanted - 1, work);
  }
  if (scope != nullptr) scope->RethrowStop();
  queue.RethrowError();
}

std::vector<std::size_t> SplitByWeight(Span<std::uint64_t> cumulative_weight,
                                       std::size_t num_parts) {
  return Split(cumulative_weight, num_parts);
}

std::vector<std::size_t> SplitByWeight(Span<std::uint32_t> cumulative_weight,
                                       std::size_t num_parts) {
  return Split(cumulative_weight, num_parts);
}

void RunOverContexts(Span<std::uint32_t> child_begin, int num_threads,
                     const std::function<void(std::size_t, std::size_t)>& visit) {
  constexpr std::size_t kPartsPerThread = 8;               // so that a slow thread holds up little
  constexpr std::size_t kPartSize = std::size_t{1} << 22;  // so that an interrupt waits for little
  const std::vector<std::size_t> bounds =
      SplitByWeight(child_begin, std::max(kPartsPerThread * static_cast<std::size_t>(num_threads),
                                          child_begin[child_begin.size() - 1] / kPartSize));
  RunParallel(bounds.size() - 1, num_threads,
              [&](std::size_t part) { visit(bounds[part], bounds[part + 1]); });
}

}  // namespace lattice_bpd
