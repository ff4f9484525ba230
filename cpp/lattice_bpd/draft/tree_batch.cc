#include "lattice_bpd/draft/tree_batch.h"

#include <algorithm>
#include <limits>

#include "lattice_bpd/draft/ancestor_mask.h"
#include "lattice_bpd/draft/find_drafts.h"

namespace lattice_bpd {
namespace {

TreeBatch MakePadding(std::size_t batch, std::size_t max_nodes) {
  TreeBatch out;
  out.token_ids.assign(batch * max_nodes, kPadToken);
  out.parents.assign(batch * max_nodes, -1);
  out.depths.assign(batch * max_nodes, 0);
  out.log_probs.assign(batch * max_nodes, -std::numeric_limits<float>::infinity());
  out.counts.assign(batch, 0);
  out.attention_mask.resize(batch * max_nodes * max_nodes);
  return out;
}

void WriteTree(const std::vector<TreeNode>& nodes, std::size_t b, std::size_t max_nodes,
               TreeBatch* out) {
  out->counts[b] = static_cast<std::int32_t>(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const TreeNode& node = nodes[i];
    out->token_ids[b * max_nodes + i] = node.token_id;
    out->parents[b * max_nodes + i] = node.parent;
    out->depths[b * max_nodes + i] = node.depth;
    out->log_probs[b * max_nodes + i] = static_cast<float>(node.log_prob);
  }
  WriteAncestorMask({out->parents.data() + b * max_nodes, nodes.size()}, max_nodes,
                    out->attention_mask.data() + b * max_nodes * max_nodes);
}

// The leaves of row b.
std::vector<std::int32_t> FindLeaves(const TreeBatch& tree, std::size_t b, std::size_t max_nodes) {
  const std::int32_t* parents = tree.parents.data() + b * max_nodes;
  std::vector<bool> is_parent(max_nodes);
  for (std::int32_t i = 0; i < tree.counts[b]; ++i) {
    if (parents[i] >= 0) is_parent[parents[i]] = true;
  }
  std::vector<std::int32_t> leaves;
  for (std::int32_t i = 0; i < tree.counts[b]; ++i) {
    if (!is_parent[i]) leaves.push_back(i);
  }
  return leaves;
}

void WriteLeafPaths(std::size_t max_nodes, std::size_t num_slots, TreeBatch* out) {
  std::vector<std::vector<std::int32_t>> leaves;
  for (std::size_t b = 0; b < out->counts.size(); ++b) {
    leaves.push_back(FindLeaves(*out, b, max_nodes));
    out->max_leaves = std::max(out->max_leaves, leaves[b].size());
  }
  out->leaf_paths.assign(leaves.size() * out->max_leaves * num_slots, -1);
  for (std::size_t b = 0; b < leaves.size(); ++b) {
    for (std::size_t leaf = 0; leaf < leaves[b].size(); ++leaf) {
      std::int32_t* path = out->leaf_paths.data() + (b * out->max_leaves + leaf) * num_slots;
      for (std::int32_t i = leaves[b][leaf]; i >= 0; i = out->parents[b * max_nodes + i]) {
        path[out->depths[b * max_nodes + i]] = i;
      }
    }
  }
}

}  // namespace

TreeBatch FindTreeBatch(const LatticeBatch& lattices, const BackoffLm* lm,
                        const ContextsView& contexts, double alpha, int max_nodes, int threads,
                        Normalization normalization) {
  CheckMaxNodes(max_nodes);
  CheckAlpha(alpha);
  const auto width = static_cast<std::size_t>(max_nodes);
  TreeBatch out = MakePadding(lattices.size(), width);
  ForEachLattice(lattices, lm, contexts, threads,
                 [&](std::size_t b, const Sausage& lattice, const LmState& start,
                     const CachedContext& cached) {
                   WriteTree(FindTree(lattice, lm, start, alpha, max_nodes, cached, normalization),
                             b, width, &out);
                 });
  WriteLeafPaths(width, lattices.num_slots(), &out);
  return out;
}

}  // namespace lattice_bpd
