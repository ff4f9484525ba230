// The builds of the fused search, one for each instruction set.
#ifndef LATTICE_BPD_DRAFT_FUSED_KERNELS_H_
#define LATTICE_BPD_DRAFT_FUSED_KERNELS_H_

#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/fused_workspace.h"

namespace lattice_bpd {

using RunFused = void (*)(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                          const DraftOptions& options, FusedWorkspace* workspace, DraftList* out);

struct FusedKernel {
  const char* name;
  RunFused run;
};

// Null where this build or this processor lacks the instructions.
RunFused FusedAvx512();
RunFused FusedAvx2();
RunFused FusedScalar();

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_KERNELS_H_
