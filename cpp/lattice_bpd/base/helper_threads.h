// Threads that wait for work between calls: waking one costs a few microseconds (where an idle core
// sleeps, on virtual machines, up to hundreds), starting one several times that, and a thread that
// stays keeps its warm buffers. Waiting threads spin briefly before they sleep, and yield
// the core to other threads.
#ifndef LATTICE_BPD_BASE_HELPER_THREADS_H_
#define LATTICE_BPD_BASE_HELPER_THREADS_H_

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>

namespace lattice_bpd {

class HelperThreads {
 public:
  // The process's own; a forked child, which has none of its parent's threads, gets new ones. Made
  // at first use and never destroyed: waiting threads must not outlive what they wait on.
  static HelperThreads& OfProcess();

  HelperThreads();
  HelperThreads(const HelperThreads&) = delete;
  HelperThreads& operator=(const HelperThreads&) = delete;

  // Calls work() here and on up to `helpers` threads besides. Returns when every call has ended; a
  // helper that has not begun by the time the caller's own call ends is let off, so that calls
  // from several threads, or from within work(), never wait for each other. `work` must not throw.
  void Run(std::size_t helpers, const std::function<void()>& work);

 private:
  struct Job {
    const std::function<void()>& work;
    std::size_t wanted;  // helpers that may still join
    std::atomic<std::size_t> running;
    std::condition_variable ended;
  };

  void Post(Job* job);
  bool StartThread();
  void Serve();

  const pid_t process_;
  std::mutex mutex_;
  std::condition_variable posted_;
  // All change under mutex_; atomic are those that are read without it.
  std::list<Job*> jobs_;                // jobs that can use helpers
  std::atomic<std::size_t> wanted_{0};  // by all jobs together
  std::size_t waiting_ = 0;             // threads without a job
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_HELPER_THREADS_H_
