#include "lattice_bpd/draft/fused_engine.h"

#include <atomic>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/fused_kernels.h"

namespace lattice_bpd {
namespace {

// Those that run here, best first.
const std::vector<FusedKernel>& Kernels() {
  static const std::vector<FusedKernel> kernels = [] {
    std::vector<FusedKernel> found;
    for (const FusedKernel& kernel :
         {FusedKernel{"avx512", FusedAvx512()}, FusedKernel{"avx2", FusedAvx2()},
          FusedKernel{"scalar", FusedScalar()}}) {
      if (kernel.run != nullptr) found.push_back(kernel);
    }
    return found;
  }();
  return kernels;
}

std::atomic<const FusedKernel*> chosen{nullptr};

}  // namespace

std::vector<std::string> FusedInstructionSets() {
  std::vector<std::string> names;
  for (const FusedKernel& kernel : Kernels()) names.push_back(kernel.name);
  return names;
}

void SetFusedInstructionSet(const std::string& name) {
  std::string known;
  for (const FusedKernel& kernel : Kernels()) {
    if (name.empty() || name == kernel.name) {
      chosen = &kernel;
      return;
    }
    known += StrCat(known.empty() ? "" : ", ", kernel.name);
  }
  throw ValueError(
      StrCat("instruction set \"", name, "\" does not run here; expected one of ", known));
}

DraftList FindDraftsFused(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                          const DraftOptions& options) {
  thread_local FusedWorkspace workspace;
  const FusedKernel* kernel = chosen.load(std::memory_order_relaxed);
  if (kernel == nullptr) kernel = &Kernels().front();
  DraftList out;
  kernel->run(sausage, lm, start, options, &workspace, &out);
  return out;
}

}  // namespace lattice_bpd
