#include "lattice_bpd/draft/fused_engine.h"

#include "lattice_bpd/base/instruction_sets.h"
#include "lattice_bpd/draft/fused_kernels.h"

namespace lattice_bpd {
namespace {

InstructionSets<FusedKernel>& Sets() {
  static InstructionSets<FusedKernel> sets{FusedAvx512(), FusedAvx2(), FusedNeon(), FusedScalar()};
  return sets;
}

FusedWorkspace* Workspace() {
  thread_local FusedWorkspace workspace;
  return &workspace;
}

}  // namespace

std::vector<std::string> FusedInstructionSets() { return Sets().Names(); }

void SetFusedInstructionSet(const std::string& name) { Sets().Choose(name); }

void FindDraftsFused(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                     const DraftOptions& options, DraftList* out) {
  Sets().chosen().find_drafts(sausage, lm, start, options, Workspace(), out);
}

void FindTreeFused(const Sausage& sausage, const BackoffLm* lm, const LmState& start, double alpha,
                   int max_nodes, Normalization normalization, std::vector<TreeNode>* out) {
  const DraftOptions options = {/*num_drafts=*/1, alpha, Engine::kFused, normalization};
  Sets().chosen().find_tree(sausage, lm, start, options, max_nodes, Workspace(), out);
}

void FindChainFused(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                    const ChainOptions& options, std::vector<TreeNode>* out) {
  Sets().chosen().find_chain(sausage, lm, start, options, Workspace(), out);
}

void SampleTreeFused(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                     const SampleOptions& options, SampledTree* out) {
  Sets().chosen().sample_tree(sausage, lm, start, options, Workspace(), out);
}

}  // namespace lattice_bpd
