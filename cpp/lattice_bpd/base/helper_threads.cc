#include "lattice_bpd/base/helper_threads.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <memory>
#include <thread>

namespace lattice_bpd {
namespace {

// Waits for ready(), but not for long.
template <typename Ready>
void LookFor(const Ready& ready) {
  constexpr std::chrono::microseconds kMoment{50};
  const auto end = std::chrono::steady_clock::now() + kMoment;
  while (!ready() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

HelperThreads& HelperThreads::OfProcess() {
  static std::atomic<HelperThreads*> instance{nullptr};
  HelperThreads* current = instance.load();
  while (current == nullptr || current->process_ != ::getpid()) {
    auto fresh = std::make_unique<HelperThreads>();
    if (instance.compare_exchange_strong(current, fresh.get())) current = fresh.release();
  }
  return *current;
}

HelperThreads::HelperThreads() : process_(::getpid()) {}

void HelperThreads::Run(std::size_t helpers, const std::function<void()>& work) {
  Job job{work, helpers, 0, {}};
  if (helpers > 0) Post(&job);
  work();
  if (helpers == 0) return;
  std::unique_lock<std::mutex> lock(mutex_);
  if (job.wanted > 0) {
    wanted_ -= job.wanted;
    jobs_.remove(&job);
  }
  lock.unlock();
  LookFor([&job] { return job.running == 0; });
  lock.lock();  // until its helper has let go of the job
  job.ended.wait(lock, [&job] { return job.running == 0; });
}

void HelperThreads::Post(Job* job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  jobs_.push_back(job);
  wanted_ += job->wanted;
  while (waiting_ < wanted_ && StartThread()) {
  }
  for (std::size_t i = 0; i < job->wanted; ++i) posted_.notify_one();
}

// False where there is no further thread to be had, or no memory for one.
bool HelperThreads::StartThread() {
  try {
    std::thread([this] { Serve(); }).detach();
  } catch (const std::exception&) {
    return false;
  }
  ++waiting_;
  return true;
}

void HelperThreads::Serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    posted_.wait(lock, [this] { return !jobs_.empty(); });
    Job* job = jobs_.front();
    if (--job->wanted == 0) jobs_.pop_front();
    --wanted_;
    --waiting_;
    ++job->running;
    lock.unlock();
    job->work();
    lock.lock();
    ++waiting_;
    if (--job->running == 0) job->ended.notify_one();
    lock.unlock();
    LookFor([this] { return wanted_ > 0; });
    lock.lock();
  }
}

}  // namespace lattice_bpd
