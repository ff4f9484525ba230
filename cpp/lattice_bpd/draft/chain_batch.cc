#include "lattice_bpd/draft/chain_batch.h"

#include <limits>

#include "lattice_bpd/draft/find_drafts.h"

namespace lattice_bpd {

ChainBatch FindChainBatch(const LatticeBatch& lattices, const BackoffLm* lm,
                          const ContextsView& contexts, const ChainOptions& options, int threads) {
  CheckAlpha(options.alpha);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  ChainBatch out;
  out.num_slots = lattices.num_slots();
  out.token_ids.assign(lattices.size() * out.num_slots, kPadToken);
  out.log_probs.assign(lattices.size() * out.num_slots, kNone);
  out.accept_lengths.assign(lattices.size(), kNone);
  out.counts.assign(lattices.size(), 0);
  ForEachLattice(lattices, lm, contexts, threads,
                 [&](std::size_t b, const Sausage& lattice, const LmState& start) {
                   thread_local std::vector<TreeNode> chain;
                   FindChain(lattice, lm, start, options, &chain);
                   if (chain.empty()) return;
                   for (std::size_t i = 0; i < chain.size(); ++i) {
                     out.token_ids[b * out.num_slots + i] = chain[i].token_id;
                     out.log_probs[b * out.num_slots + i] = static_cast<float>(chain[i].log_prob);
                   }
                   out.accept_lengths[b] = static_cast<float>(ExpectedAcceptLength(chain));
                   out.counts[b] = 1;
                 });
  return out;
}

std::vector<std::vector<TokenId>> FindChainDrafts(const LatticeBatch& lattices, const BackoffLm* lm,
                                                  const ContextsView& contexts,
                                                  const ChainOptions& options,
                                                  double least_log_prob, int threads) {
  CheckAlpha(options.alpha);
  std::vector<std::vector<TokenId>> drafts(lattices.size());
  ForEachLattice(lattices, lm, contexts, threads,
                 [&](std::size_t b, const Sausage& lattice, const LmState& start) {
                   thread_local std::vector<TreeNode> chain;
                   FindChain(lattice, lm, start, options, &chain);
                   drafts[b].reserve(chain.size());
                   for (const TreeNode& node : chain) {
                     if (node.log_prob < least_log_prob) break;
                     drafts[b].push_back(node.token_id);
                   }
                 });
  return drafts;
}

}  // namespace lattice_bpd
