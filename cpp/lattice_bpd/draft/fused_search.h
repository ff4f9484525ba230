// The fused search itself, compiled once for each instruction set (fused_scalar.cc, fused_avx2.cc,
// fused_avx512.cc, fused_neon.cc). `Simd` has the few operations that differ; fused_scalar.h says
// what each must do. docs/concepts.md has the proof; names are the same there.
//
// Everything is in an anonymous namespace on purpose: each translation unit must keep its own
// copy, or the linker could hand AVX-512 code to the scalar build.
#ifndef LATTICE_BPD_DRAFT_FUSED_SEARCH_H_
#define LATTICE_BPD_DRAFT_FUSED_SEARCH_H_

#include "lattice_bpd/draft/fused_beam.h"
#include "lattice_bpd/draft/fused_chain.h"
#include "lattice_bpd/draft/fused_completions.h"
#include "lattice_bpd/draft/fused_hits.h"
#include "lattice_bpd/draft/fused_masses.h"
#include "lattice_bpd/draft/fused_normalizer.h"
#include "lattice_bpd/draft/fused_task.h"
#include "lattice_bpd/draft/fused_transitions.h"
#include "lattice_bpd/draft/fused_tree.h"

namespace lattice_bpd {
namespace {

// Step 1, and what transitions and local normalization add to it.
template <typename Simd, bool kForChains = false>
void FindRowsAndHits(FusedTask* task, FusedWorkspace* workspace) {
  HitFinder<Simd>::PrefetchFirst(*task);
  LoadCandidates(*task, workspace);
  LoadTransitions(*task, workspace);
  HitFinder<Simd>(*task, workspace).Run();
  if (task->has_transitions) TransitionRows(task, workspace).Run();
  if (task->is_local) NormalizeRows<Simd, kForChains>(*task, workspace);
}

// FindRowsAndHits, and ln of the mass of every row's completions: in `worth`, and in the scores of
// hits. With local normalization there is nothing to add, since all of these are 0.
template <typename Simd, bool kForChains = false>
void FindMasses(FusedTask* task, FusedWorkspace* workspace) {
  FindRowsAndHits<Simd, kForChains>(task, workspace);
  if (!task->is_local) MassFinder<Simd, kForChains>(*task, workspace).Run();
}

template <typename Simd>
void SearchFused(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                 const DraftOptions& options, FusedWorkspace* workspace, DraftList* out) {
  FusedTask task(sausage, lm, start, options);
  FindRowsAndHits<Simd>(&task, workspace);
  CompletionFinder<Simd> completions(task, workspace);
  completions.Run();
  BeamSearch<Simd> beam(task, workspace);
  beam.Run(&completions);
  beam.WriteDrafts(out);
}

template <typename Simd>
void SearchFusedTree(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                     const DraftOptions& options, int max_nodes, FusedWorkspace* workspace,
                     std::vector<TreeNode>* out) {
  FusedTask task(sausage, lm, start, options);
  FindMasses<Simd>(&task, workspace);
  RowValues<Simd> values(task, workspace);
  using Search = TreeSearch<Simd, ByMass>;
  Search tree(task, workspace, ByMass());
  tree.Run(static_cast<std::uint32_t>(max_nodes), Search::TotalMass(*workspace), &values);
  tree.WriteNodes(out);
}

template <typename Simd>
void SearchFusedChain(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                      const ChainOptions& options, FusedWorkspace* workspace,
                      std::vector<TreeNode>* out) {
  const bool is_walk = options.objective == ChainObjective::kGreedyWalk;
  const Normalization normalization = is_walk ? Normalization::kLocal : options.normalization;
  FusedTask task(sausage, lm, start, {1, options.alpha, Engine::kFused, normalization});
  is_walk ? FindMasses<Simd>(&task, workspace) : FindMasses<Simd, true>(&task, workspace);
  WriteChain<Simd>(task, is_walk, workspace, out);
}

template <typename Simd>
void SearchFusedSample(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                       const SampleOptions& options, FusedWorkspace* workspace, SampledTree* out) {
  FusedTask task(sausage, lm, start, {1, options.alpha, Engine::kFused, options.normalization});
  FindMasses<Simd>(&task, workspace);
  RowValues<Simd> values(task, workspace);
  TreeSearch<Simd, ByNoise> tree(task, workspace, ByNoise(task, *workspace, options, out));
  tree.Run(static_cast<std::uint32_t>(options.max_nodes), /*total=*/0.0, &values);
  tree.WriteNodes(&out->nodes);
  out->child_probs.resize((out->nodes.size() + 1) * out->width, 0.0);
}

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_SEARCH_H_
