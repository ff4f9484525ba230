// The p best paths through a lattice FST and an LM, as OpenFst finds them: composition with failure
// arcs, then ShortestPath (paper 001, section 7.2).
//
// What is added to plain OpenFst calls: weights in double on the score grid with delta 0, so that
// ShortestPath is exact; and, where paths tie for rank p, which it breaks arbitrarily, a
// depth-first walk that finds the tied paths with the smallest token ids.
#ifndef LATTICE_BPD_DRAFT_OPENFST_PATHS_H_
#define LATTICE_BPD_DRAFT_OPENFST_PATHS_H_

#include <vector>

#include "lattice_bpd/base/label.h"
#include "lattice_bpd/base/openfst.h"
#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

struct ScoredPath {
  double cost = 0.0;
  std::vector<TokenId> token_ids;
};

// Composes a lattice with alpha times the LM from `start` on, which may be null: then the lattice
// is returned as it is. The lattice must be acyclic, deterministic and free of epsilons, with grid
// costs; so is the result. Every state of the LM is final at no cost.
ScoreVectorFst ComposeWithLm(const ScoreVectorFst& lattice, const BackoffLm* lm,
                             const LmState& start, double alpha);

// The `count` best paths (all, where there are fewer) of what ComposeWithLm returned: by increasing
// cost, equal costs by the smaller token id at the first position where two paths differ, a path
// before what is longer.
std::vector<ScoredPath> FindBestPaths(const ScoreVectorFst& fst, std::size_t count);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_OPENFST_PATHS_H_
