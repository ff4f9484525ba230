// Trees for targets that sample: drawn from the lattice's joint distribution, or shaped by the
// noise that the target's own draws will use.
//
// P(w) = exp(score(w)) / Z over all paths w as in find_tree.h, and q(t | prefix) is the exact
// conditional probability of the next token, from the same sums over completions.
//
// `kDrawn`: prefixes of paths drawn from P without replacement, by backward sampling: the sums run
// backward, then a path is drawn forward from the q. Draws without replacement come top-down from
// Gumbel noise (Kool, van Hoof, Welling 2019): ln P + noise of a prefix is the maximum over its
// completions, so a child's value is drawn given that of its parent, and the largest values are the
// draws in their order. The children of a node, in order, are draws without replacement from its q,
// which is what multi-draft rejection needs (Jeon et al. 2024); how many there are depends on their
// values, which are independent of what comes after them.
//
// `kShared`: the target's next token is argmax of ln p + noise, with noise that is a function of
// key, position and token. So the tree may know it: behind each node a token is expected with
// probability softmax(sharpness * (ln q + noise)), and the nodes are the most probable prefixes.
#ifndef LATTICE_BPD_DRAFT_DRAW_TREE_H_
#define LATTICE_BPD_DRAFT_DRAW_TREE_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/draft/find_tree.h"

namespace lattice_bpd {

enum class NoiseUse { kDrawn, kShared };

struct DrawOptions {
  double alpha = 1.0;
  int max_nodes = 1;
  NoiseUse use = NoiseUse::kDrawn;
  double sharpness = 1.0;      // of kShared, above 0
  std::uint64_t key = 0;       // of the noise
  std::uint64_t position = 0;  // of the first slot, for kShared
};

// `nodes` by falling value; parents stand before children, and siblings in the order of their
// draws. log_prob is ln of the prefix's probability, for kShared with the noise taken in.
// `token_ids` are the candidates of each slot by rising id, `width` for each, padded with
// kPadToken; `child_probs` has q for them, a row for the root and then one for each node, all zeros
// behind the last slot.
struct DrawnTree {
  std::vector<TreeNode> nodes;
  std::size_t width = 0;
  std::vector<TokenId> token_ids;
  std::vector<double> child_probs;
};

// Throws ValueError where max_nodes or sharpness is out of range, or as FindDrafts.
void DrawTree(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
              const DrawOptions& options, const CachedContext& cached, DrawnTree* out);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_DRAW_TREE_H_
