// The chain that a path of the lattice is expected to begin with the most tokens of.
//
// P(w) = exp(score(w)) / Z over all paths w as in find_tree.h. If the target generates a path that
// is sampled from P, a chain c has the expected accept length
//
//   sum over i of P(c_1 .. c_i)        P of a prefix: the probability of all paths with it
//
// and the best one is found by V(prefix) = max over w of q(w | prefix) (1 + V(prefix w)), with q
// the exact conditional of P. The best path (find_drafts.h) maximises the last term of that sum
// alone.
//
// With local normalization q is that of the candidates of one slot (find_drafts.h). The greedy
// walk, as drafters with transitions do it, takes the most probable candidate of each slot after
// those before, by those q.
//
// Exact: V is found in the pass over all rows that finds the sums of FindTree (fused_masses.h).
// ln(1 + V) is rounded to the score grid, at most 3e-8 a slot.
#ifndef LATTICE_BPD_DRAFT_FIND_CHAIN_H_
#define LATTICE_BPD_DRAFT_FIND_CHAIN_H_

#include <vector>

#include "lattice_bpd/draft/find_tree.h"

namespace lattice_bpd {

enum class ChainObjective { kAcceptLength, kGreedyWalk };

struct ChainOptions {
  double alpha = 1.0;
  ChainObjective objective = ChainObjective::kAcceptLength;
  Normalization normalization = Normalization::kGlobal;  // of kAcceptLength
};

// A token for each slot of the lattice as nodes: node i has parent i - 1, depth i and ln of the
// probability of the prefix that it ends, kGreedyWalk: by the local q. Equal expected lengths: the
// smaller token id at the first slot where two chains differ. Fewer tokens where no path continues,
// which takes an LM with probabilities of 0. Errors are as in FindDrafts.
std::vector<TreeNode> FindChain(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                                const ChainOptions& options);

// The same into `out`, whose memory is used again.
void FindChain(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
               const ChainOptions& options, std::vector<TreeNode>* out);

// The sum of the probabilities of a chain's prefixes.
double ExpectedAcceptLength(const std::vector<TreeNode>& chain);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FIND_CHAIN_H_
