// The chain of greatest expected accept length of each lattice of a batch, in padded arrays.
#ifndef LATTICE_BPD_DRAFT_CHAIN_BATCH_H_
#define LATTICE_BPD_DRAFT_CHAIN_BATCH_H_

#include <vector>

#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/for_each_lattice.h"

namespace lattice_bpd {

// Token i of row b is token_ids[b * num_slots + i], log_probs has ln of the probability of the
// prefix that it ends; shorter chains are padded with kPadToken and -inf. counts[b] is 0 where
// there is no chain, else 1; accept_lengths[b] is the expected one.
struct ChainBatch {
  std::size_t num_slots = 0;
  std::vector<TokenId> token_ids;
  std::vector<float> log_probs;
  std::vector<float> accept_lengths;
  std::vector<std::int32_t> counts;
};

// FindChain for each lattice; `threads` and errors as in ForEachLattice.
ChainBatch FindChainBatch(const LatticeBatch& lattices, const BackoffLm* lm,
                          const ContextsView& contexts, const ChainOptions& options,
                          int threads = 1);

// The tokens of FindChain for each lattice, up to the first prefix whose ln probability is below
// `least_log_prob`.
std::vector<std::vector<TokenId>> FindChainDrafts(const LatticeBatch& lattices, const BackoffLm* lm,
                                                  const ContextsView& contexts,
                                                  const ChainOptions& options,
                                                  double least_log_prob, int threads = 1);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_CHAIN_BATCH_H_
