#include "lattice_bpd/draft/openfst_engine.h"

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/openfst_paths.h"
#include "lattice_bpd/lattice/sausage_fst.h"

namespace lattice_bpd {

void FindDraftsOpenFst(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                       const DraftOptions& options, DraftList* out) {
  const ScoreVectorFst lattice = BuildSausageFst<ScoreArc>(
      sausage, [](float score) { return ScoreWeight(-ToScoreGrid(score)); });
  const std::size_t count = sausage.CountPaths(static_cast<std::size_t>(options.num_drafts));
  out->num_slots = sausage.num_slots();
  out->token_ids.clear();
  out->scores.clear();
  for (const ScoredPath& path :
       FindBestPaths(ComposeWithLm(lattice, lm, start, options.alpha), count)) {
    out->token_ids.insert(out->token_ids.end(), path.token_ids.begin(), path.token_ids.end());
    out->scores.push_back(-path.cost);
  }
}

}  // namespace lattice_bpd
