#include "lattice_bpd/draft/openfst_engine.h"

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/openfst_paths.h"
#include "lattice_bpd/lattice/sausage_fst.h"

namespace lattice_bpd {

DraftList FindDraftsOpenFst(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                            const DraftOptions& options) {
  const bool masked = sausage.all_masked();
  const ScoreVectorFst lattice = BuildSausageFst<ScoreArc>(
      sausage, [masked](float score) { return ScoreWeight(masked ? 0.0 : -ToScoreGrid(score)); });
  const std::size_t count = sausage.CountPaths(static_cast<std::size_t>(options.num_drafts));
  DraftList drafts;
  drafts.num_slots = sausage.num_slots();
  for (const ScoredPath& path :
       FindBestPaths(ComposeWithLm(lattice, lm, start, options.alpha), count)) {
    drafts.token_ids.insert(drafts.token_ids.end(), path.token_ids.begin(), path.token_ids.end());
    drafts.scores.push_back(-path.cost);
  }
  return drafts;
}

}  // namespace lattice_bpd
