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
                               double alpha, int max_nodes, Normalization normalization) {
  std::vector<TreeNode> out;
  FindTree(sausage, lm, start, alpha, max_nodes, normalization, &out);
  return out;
}

void FindTree(const Sausage& sausage, const BackoffLm* lm, const LmState& start, double alpha,
              int max_nodes, Normalization normalization, std::vector<TreeNode>* out) {
  CheckMaxNodes(max_nodes);
  CheckAlpha(alpha);
  out->clear();
  if (sausage.num_slots() == 0) return;
  if (lm != nullptr) CheckVocabulary(sausage.max_token_id(), *lm);
  FindTreeFused(sausage, lm, start, alpha, max_nodes, normalization, out);
}

}  // namespace lattice_bpd
