// Draft trees for targets that sample: samples of the lattice's joint distribution, or the tree
// that is most probable given the target's own noise (common random numbers).
//
// P(w) = exp(score(w)) / Z over all paths w as in find_tree.h, and q(t | prefix) is the exact
// conditional probability of the next token, from the same sums over completions.
//
// `kIndependent`: prefixes of paths sampled from P without replacement, by backward sampling: the
// sums run backward, then a path is sampled forward from the q. Samples without replacement come
// top-down from Gumbel noise (stochastic beam search; Kool, van Hoof, Welling 2019): ln P + noise
// of a prefix is the maximum over its completions, so a child's value is sampled given that of its
// parent, and the largest values are the samples in their order. The children of a node, in order,
// are samples without replacement from its q, which is what multi-draft rejection needs (Jeon et
// al. 2024); how many there are depends on their values, which are independent of what comes after
// them.
//
// `kShared`: the target's next token is argmax of ln p + noise, with noise that is a function of
// key, position and token. The tree uses it: after each node a token is expected with
// probability softmax(sharpness * (ln q + noise)), and the nodes are the most probable prefixes.
#ifndef LATTICE_BPD_DRAFT_SAMPLE_TREE_H_
#define LATTICE_BPD_DRAFT_SAMPLE_TREE_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/draft/find_tree.h"

namespace lattice_bpd {

enum class NoiseUse { kIndependent, kShared };

struct SampleOptions {
  double alpha = 1.0;
  int max_nodes = 1;
  NoiseUse use = NoiseUse::kIndependent;
  double sharpness = 1.0;      // of kShared, above 0
  std::uint64_t key = 0;       // of the noise
  std::uint64_t position = 0;  // of the first slot, for kShared
  Normalization normalization = Normalization::kGlobal;
};

// `nodes` by decreasing value; parents precede children, and siblings in the order of their
// samples. log_prob is ln of the prefix's probability, for kShared with the noise taken in.
// `token_ids` are the candidates of each slot by increasing id, `width` for each, padded with
// kPadToken; `child_probs` has q for them, a row for the root and then one for each node, all zeros
// after the last slot.
struct SampledTree {
  std::vector<TreeNode> nodes;
  std::size_t width = 0;
  std::vector<TokenId> token_ids;
  std::vector<double> child_probs;
};

// Throws ValueError where max_nodes or sharpness is out of range, or as FindDrafts.
void SampleTree(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                const SampleOptions& options, SampledTree* out);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_SAMPLE_TREE_H_
