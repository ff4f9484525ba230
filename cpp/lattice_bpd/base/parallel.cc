#include "lattice_bpd/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr int kMaxThreads = 1024;

// The tasks not yet begun, and the first exception of those that were.
class TaskQueue {
 public:
  TaskQueue(std::size_t num_tasks, const std::function<void(std::size_t)>& task)
      : num_tasks_(num_tasks), task_(task) {}

  void Work() noexcept {
    try {
      for (std::size_t i = next_++; i < num_tasks_; i = next_++) task_(i);
    } catch (...) {
      next_ = num_tasks_;
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void RethrowError() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const std::size_t num_tasks_;
  const std::function<void(std::size_t)>& task_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

// False where there is no further thread to be had, or no memory for one: then those that run
// take the remaining tasks.
bool StartHelper(TaskQueue* queue, std::vector<std::thread>* helpers) {
  try {
    helpers->emplace_back([queue] { queue->Work(); });
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

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
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

void RunParallel(std::size_t num_tasks, int num_threads,
                 const std::function<void(std::size_t)>& task) {
  TaskQueue queue(num_tasks, task);
  const std::size_t wanted = std::min<std::size_t>(num_threads, num_tasks);
  std::vector<std::thread> helpers;
  while (helpers.size() + 1 < wanted && StartHelper(&queue, &helpers)) {
  }
  queue.Work();
  for (std::thread& helper : helpers) helper.join();
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
  constexpr std::size_t kPartsPerThread = 8;  // so that a slow thread holds up little
  const std::vector<std::size_t> bounds =
      SplitByWeight(child_begin, kPartsPerThread * static_cast<std::size_t>(num_threads));
  RunParallel(bounds.size() - 1, num_threads,
              [&](std::size_t part) { visit(bounds[part], bounds[part + 1]); });
}

}  // namespace lattice_bpd
