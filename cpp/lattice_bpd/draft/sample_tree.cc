#include "lattice_bpd/draft/sample_tree.h"

#include <cmath>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/fused_engine.h"

namespace lattice_bpd {

void SampleTree(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                const SampleOptions& options, SampledTree* out) {
  CheckMaxNodes(options.max_nodes);
  CheckAlpha(options.alpha);
  if (!(options.sharpness > 0.0) || !std::isfinite(options.sharpness)) {
    throw ValueError(
        StrCat("sharpness is ", options.sharpness, "; expected a number above 0 and finite"));
  }
  *out = {};
  if (sausage.num_slots() == 0) return;
  if (lm != nullptr) CheckVocabulary(sausage.max_token_id(), *lm);
  SampleTreeFused(sausage, lm, start, options, out);
}

}  // namespace lattice_bpd
