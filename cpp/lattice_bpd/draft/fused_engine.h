// Engine "fused": the exact p best paths without an FST, straight from the packed LM.
//
// docs/concepts.md has the algorithm, why it is exact, and its cost. In short: only n-grams of the
// LM that match a candidate of the next slot (hits) can make two paths differ, and there are few.
//   1. forward, slot by slot: find the hits; a history with a hit becomes a row, one without is
//      its suffix plus a constant
//   2. backward: the best completion of every row, by dynamic programming over rows x candidates
//   3. forward: a beam of p prefixes ranked by their exact best completion
//
// The same source is compiled for several instruction sets; the best one that the processor has
// runs. All of them add scores on the grid (base/score_grid.h) and give the same bits.
#ifndef LATTICE_BPD_DRAFT_FUSED_ENGINE_H_
#define LATTICE_BPD_DRAFT_FUSED_ENGINE_H_

#include <string>
#include <vector>

#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/sample_tree.h"

namespace lattice_bpd {

// As FindDraftsOpenFst. Memory that the search needs stays with the calling thread, so that calls
// allocate nothing once warm.
void FindDraftsFused(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                     const DraftOptions& options, DraftList* out);

// As FindTree (find_tree.h), for one slot or more; the first two steps are those above with sums in
// place of maxima.
void FindTreeFused(const Sausage& sausage, const BackoffLm* lm, const LmState& start, double alpha,
                   int max_nodes, Normalization normalization, std::vector<TreeNode>* out);

// As FindChain (find_chain.h), for one slot or more.
void FindChainFused(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                    const ChainOptions& options, std::vector<TreeNode>* out);

// As SampleTree (sample_tree.h), for one slot or more; `out` is empty.
void SampleTreeFused(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                     const SampleOptions& options, SampledTree* out);

// The instruction sets that this processor and build can run, best first; "scalar" is always
// there.
std::vector<std::string> FusedInstructionSets();

// Makes all searches use one of them, for tests and benchmarks; "" means the best. Throws
// ValueError for one that is not in FusedInstructionSets().
void SetFusedInstructionSet(const std::string& name);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_ENGINE_H_
