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

// 1 for each node that is a leaf, in the layout of the nodes.
std::vector<std::uint8_t> MarkLeaves(const TreeBatch& tree, std::size_t max_nodes) {
  std::vector<std::uint8_t> is_leaf(tree.parents.size(), 0);
  for (std::size_t b = 0; b < tree.counts.size(); ++b) {
    std::uint8_t* const row = is_leaf.data() + b * max_nodes;
    for (std::int32_t i = 0; i < tree.counts[b]; ++i) {  // parents are before children
      row[i] = 1;
      const std::int32_t parent = tree.parents[b * max_nodes + static_cast<std::size_t>(i)];
      if (parent >= 0) row[parent] = 0;
    }
  }
  return is_leaf;
}

void WriteLeafPaths(std::size_t max_nodes, std::size_t num_slots, TreeBatch* out) {
  const std::vector<std::uint8_t> is_leaf = MarkLeaves(*out, max_nodes);
  const std::size_t batch = out->counts.size();
  for (std::size_t b = 0; b < batch; ++b) {
    const std::uint8_t* const row = is_leaf.data() + b * max_nodes;
    const auto leaves = static_cast<std::size_t>(std::count(row, row + max_nodes, 1));
    out->max_leaves = std::max(out->max_leaves, leaves);
  }
  out->leaf_paths.assign(batch * out->max_leaves * num_slots, -1);
  for (std::size_t b = 0; b < batch; ++b) {
    std::int32_t* path = out->leaf_paths.data() + b * out->max_leaves * num_slots;
    for (std::size_t leaf = 0; leaf < max_nodes; ++leaf) {
      if (is_leaf[b * max_nodes + leaf] == 0) continue;
      for (auto i = static_cast<std::int32_t>(leaf); i >= 0; i = out->parents[b * max_nodes + i]) {
        path[out->depths[b * max_nodes + i]] = i;
      }
      path += num_slots;
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
                 [&](std::size_t b, const Sausage& lattice, const LmState& start) {
                   thread_local std::vector<TreeNode> nodes;
                   FindTree(lattice, lm, start, alpha, max_nodes, normalization, &nodes);
                   WriteTree(nodes, b, width, &out);
                 });
  WriteLeafPaths(width, lattices.num_slots(), &out);
  return out;
}

}  // namespace lattice_bpd
