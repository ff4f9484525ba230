#include "lattice_bpd/draft/find_chain.h"

#include <cmath>

#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/fused_engine.h"

namespace lattice_bpd {

std::vector<TreeNode> FindChain(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                                const ChainOptions& options) {
  std::vector<TreeNode> out;
  FindChain(sausage, lm, start, options, &out);
  return out;
}

void FindChain(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
               const ChainOptions& options, std::vector<TreeNode>* out) {
  CheckAlpha(options.alpha);
  out->clear();
  if (sausage.num_slots() == 0) return;
  if (lm != nullptr) CheckVocabulary(sausage.max_token_id(), *lm);
  FindChainFused(sausage, lm, start, options, out);
}

double ExpectedAcceptLength(const std::vector<TreeNode>& chain) {
  double total = 0.0;
  for (const TreeNode& node : chain) total += std::exp(node.log_prob);
  return total;
}

}  // namespace lattice_bpd
