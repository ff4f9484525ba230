// The same function built for several instruction sets: which of them run here, and which is used.
#ifndef LATTICE_BPD_BASE_INSTRUCTION_SETS_H_
#define LATTICE_BPD_BASE_INSTRUCTION_SETS_H_

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <initializer_list>
#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {

#if defined(__x86_64__)
// __builtin_cpu_supports does not know "f16c" in older compilers.
inline bool HasF16c() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

// `Kernel` has a `name`, and runs(): whether this build and this processor have the instructions.
template <typename Kernel>
class InstructionSets {
 public:
  // Best first; the last one must run everywhere.
  explicit InstructionSets(std::initializer_list<Kernel> kernels) {
    for (const Kernel& kernel : kernels) {
      if (kernel.runs()) kernels_.push_back(kernel);
    }
    chosen_ = &kernels_.front();
  }

  const Kernel& chosen() const { return *chosen_.load(std::memory_order_relaxed); }

  // Those that run here, best first.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Kernel& kernel : kernels_) names.push_back(kernel.name);
    return names;
  }

  // "" means the best. Throws ValueError for one that does not run here.
  void Choose(const std::string& name) {
    std::string known;
    for (const Kernel& kernel : kernels_) {
      if (name.empty() || name == kernel.name) {
        chosen_ = &kernel;
        return;
      }
      known += StrCat(known.empty() ? "" : ", ", kernel.name);
    }
    throw ValueError(
        StrCat("instruction set \"", name, "\" does not run here; expected one of ", known));
  }

 private:
  std::vector<Kernel> kernels_;
  std::atomic<const Kernel*> chosen_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_INSTRUCTION_SETS_H_
