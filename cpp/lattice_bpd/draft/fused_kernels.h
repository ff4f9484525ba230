// The builds of the fused search, one for each instruction set.
#ifndef LATTICE_BPD_DRAFT_FUSED_KERNELS_H_
#define LATTICE_BPD_DRAFT_FUSED_KERNELS_H_

#include <vector>

#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_workspace.h"
#include "lattice_bpd/draft/sample_tree.h"

namespace lattice_bpd {

using RunFused = void (*)(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                          const DraftOptions& options, FusedWorkspace* workspace, DraftList* out);

using RunFusedTree = void (*)(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                              const DraftOptions& options, int max_nodes, FusedWorkspace* workspace,
                              std::vector<TreeNode>* out);

using RunFusedChain = void (*)(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                               const ChainOptions& options, FusedWorkspace* workspace,
                               std::vector<TreeNode>* out);

using RunFusedSample = void (*)(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                                const SampleOptions& options, FusedWorkspace* workspace,
                                SampledTree* out);

struct FusedKernel {
  const char* name;
  RunFused find_drafts;
  RunFusedTree find_tree;
  RunFusedChain find_chain;
  RunFusedSample sample_tree;

  bool runs() const { return find_drafts != nullptr; }
};

// With null pointers where this build or this processor lacks the instructions.
FusedKernel FusedAvx512();
FusedKernel FusedAvx2();
FusedKernel FusedNeon();
FusedKernel FusedScalar();

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_KERNELS_H_
