#include "lattice_bpd/base/interrupts.h"

#include <utility>

namespace lattice_bpd {
namespace {

// The scope of this thread, and whether it was opened here or inherited.
struct OfThread {
  InterruptScope* scope = nullptr;
  bool own = false;
};

OfThread& Here() {
  thread_local OfThread here;
  return here;
}

}  // namespace

InterruptScope::InterruptScope(std::function<void()> check, std::chrono::milliseconds between)
    : check_(std::move(check)),
      between_(between),
      outer_(Here().scope),
      next_(std::chrono::steady_clock::now()) {
  Here() = {this, true};
}

InterruptScope::~InterruptScope() { Here() = {outer_, outer_ != nullptr}; }

InterruptScope* InterruptScope::Current() { return Here().scope; }

void InterruptScope::RethrowStop() const {
  if (stopped_.load()) std::rethrow_exception(stop_);
}

void InterruptScope::Check() {
  RethrowStop();
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + between_;
  try {
    check_();
  } catch (...) {
    stop_ = std::current_exception();
    stopped_.store(true);
    throw;
  }
}

InheritedInterrupts::InheritedInterrupts(InterruptScope* scope) : outer_(Here().scope) {
  if (scope != outer_) Here() = {scope, false};
}

InheritedInterrupts::~InheritedInterrupts() {
  if (Here().scope != outer_) Here() = {outer_, outer_ != nullptr};
}

void CheckInterrupted() {
  const OfThread& here = Here();
  if (here.scope == nullptr) return;
  if (here.own) {
    here.scope->Check();
  } else if (here.scope->stopped_.load(std::memory_order_relaxed)) {
    throw Interrupted();
  }
}

}  // namespace lattice_bpd
