// The prefix tree that holds the most probability.
//
// All paths through the lattice share one joint distribution, normalized over the lattice:
//
//   P(w) = exp(score(w)) / Z        score(w) as in find_drafts.h, Z the sum over all paths
//
// and a prefix has the mass of all paths that begin with it. The tree is the set of max_nodes
// prefixes with the most mass; a prefix has at least the mass of anything longer, so that set has
// every node's parent, and no other prefix-closed set of its size has more mass in total. The sum
// of the masses is the expected number of tokens that a path sampled from P shares with the tree.
//
// With local normalization P(w) = exp(score(w)) as it is: q is known from the candidates of one
// slot, and the search needs no sums over completions.
//
// Exact: the fused search with sums instead of maxima (fused_engine.h), then best-first expansion.
// Masses are rounded to the score grid, so that equal ones are equal: at most 3e-8 a slot.
// Cost: rows * top_k exponentials, max_nodes * top_k heap entries. docs/concepts.md has the proof.
#ifndef LATTICE_BPD_DRAFT_FIND_TREE_H_
#define LATTICE_BPD_DRAFT_FIND_TREE_H_

#include <vector>

#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/lattice/sausage.h"
#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

constexpr int kMaxTreeNodes = 1 << 12;

// Node i is a prefix of a path: its last token, the node of the prefix before that (-1
// for a first token), the slot of its token, and ln of its mass.
struct TreeNode {
  TokenId token_id;
  std::int32_t parent;
  std::int32_t depth;
  double log_prob;
};

// Throws ValueError where max_nodes is out of range.
void CheckMaxNodes(int max_nodes);

// min(max_nodes, number of prefixes) nodes by decreasing mass, equal masses by the smaller token id
// at the first position where two prefixes differ, a prefix before what is longer. So parents are
// before children, and a smaller tree is the beginning of a larger one. Errors are as
// in FindDrafts.
std::vector<TreeNode> FindTree(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                               double alpha, int max_nodes,
                               Normalization normalization = Normalization::kGlobal);

// The same into `out`, whose memory is used again.
void FindTree(const Sausage& sausage, const BackoffLm* lm, const LmState& start, double alpha,
              int max_nodes, Normalization normalization, std::vector<TreeNode>* out);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FIND_TREE_H_
