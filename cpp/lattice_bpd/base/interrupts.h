// Stopping a long computation from outside, as Ctrl-C does.
//
//   InterruptScope scope(check);      // by who starts the computation; check throws to stop it
//   ... CheckInterrupted();           // in long computations, every few milliseconds
//
// The scope belongs to its thread, and to the threads that RunParallel has work for it: there
// CheckInterrupted ends the work once the scope's own thread has been stopped. Without a scope
// CheckInterrupted does nothing. It is a thread's, not an argument, because otherwise each function
// of counting, estimation and pruning would have to hand one on.
#ifndef LATTICE_BPD_BASE_INTERRUPTS_H_
#define LATTICE_BPD_BASE_INTERRUPTS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>

namespace lattice_bpd {

// What ends the work of other threads; the scope's own thread throws what its check threw.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

class InterruptScope {
 public:
  // check is called at most so often.
  explicit InterruptScope(std::function<void()> check,
                          std::chrono::milliseconds between = std::chrono::milliseconds(50));
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // That of the calling thread, or null.
  static InterruptScope* Current();

  // Throws what stopped the computation, if something did.
  void RethrowStop() const;

 private:
  friend class InheritedInterrupts;
  friend void CheckInterrupted();

  void Check();

  const std::function<void()> check_;
  const std::chrono::milliseconds between_;
  InterruptScope* const outer_;
  std::chrono::steady_clock::time_point next_;
  std::atomic<bool> stopped_{false};
  std::exception_ptr stop_;
};

// Lets a helper's thread be stopped with the scope of the thread that it works for (or null).
class InheritedInterrupts {
 public:
  explicit InheritedInterrupts(InterruptScope* scope);
  ~InheritedInterrupts();
  InheritedInterrupts(const InheritedInterrupts&) = delete;
  InheritedInterrupts& operator=(const InheritedInterrupts&) = delete;

 private:
  InterruptScope* const outer_;
};

// Throws where the computation is to stop. Reads the clock.
void CheckInterrupted();

// CheckInterrupted for loops over many small items: once in 2^16 calls.
class InterruptCounter {
 public:
  void Count(std::size_t items = 1) {
    done_ += items;
    if (done_ < kItems) return;
    done_ = 0;
    CheckInterrupted();
  }

 private:
  static constexpr std::size_t kItems = std::size_t{1} << 16;
  std::size_t done_ = 0;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_INTERRUPTS_H_
