#include "lattice_bpd/draft/find_tree.h"

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/fused_engine.h"

namespace lattice_bpd {

void CheckMaxNodes(int max_nodes) {
  if (max_nodes < 1 || max_nodes > kMaxTreeNodes) {
    throw ValueError(StrCat("max_nodes is ", max_nodes, "; expected 1..", kMaxTreeNodes));
  }
}

std::vector<TreeNode> FindTree(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                               double alpha, int max_nodes, const CachedContext& cached,
                               Normalization normalization) {
  CheckMaxNodes(max_nodes);
  CheckAlpha(alpha);
  if (sausage.num_slots() == 0) return {};
  if (lm != nullptr) CheckVocabulary(sausage.max_token_id(), *lm);
  if (cached.cache != nullptr) CheckCache(sausage.max_token_id(), lm, *cached.cache);
  return FindTreeFused(sausage, lm, start, alpha, max_nodes, cached, normalization);
}

}  // namespace lattice_bpd
