// The last step of the tree search (fused_search.h): nodes by falling mass, best first.
#ifndef LATTICE_BPD_DRAFT_FUSED_TREE_H_
#define LATTICE_BPD_DRAFT_FUSED_TREE_H_

#include <algorithm>
#include <vector>

#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_completions.h"
#include "lattice_bpd/draft/fused_hits.h"

namespace lattice_bpd {
namespace {

template <typename Simd>
class TreeSearch {
 public:
  TreeSearch(const FusedTask& task, FusedWorkspace* workspace) : task_(task), w_(*workspace) {}

  // A prefix has at least the mass of what is longer, so those not yet on the heap are behind its
  // best.
  void Run(std::uint32_t max_nodes, CompletionFinder<Simd, FusedMass>* completions) {
    w_.nodes.Clear();
    w_.heap.Clear();
    const std::uint32_t start = w_.hits.target[0];
    total_ = w_.hits.constant[0] + w_.worth[start];
    Expand(start, total_, -1, completions);
    while (w_.heap.size() > 0 && w_.nodes.size() < max_nodes) {
      std::pop_heap(w_.heap.begin(), w_.heap.end(), Worse());
      FusedNode node = w_.heap.end()[-1];
      w_.heap.Resize(w_.heap.size() - 1);
      const bool longer = SlotOf(node) + 1 < task_.num_slots;
      if (longer) node.row = TargetOf(task_, w_, RowBefore(node), node.lane);
      w_.nodes.Append(node);
      const auto index = static_cast<std::int32_t>(w_.nodes.size()) - 1;
      if (longer) Expand(node.row, node.mass, index, completions);
    }
  }

  void WriteNodes(std::vector<TreeNode>* out) const {
    out->clear();
    for (const FusedNode& node : w_.nodes) {
      const Symbol symbol = w_.symbols[task_.Lane(SlotOf(node), node.lane)];
      out->push_back({static_cast<TokenId>(symbol), node.parent, node.depth, node.mass - total_});
    }
  }

 private:
  static std::uint32_t SlotOf(const FusedNode& node) {
    return static_cast<std::uint32_t>(node.depth);
  }
  std::uint32_t RowBefore(const FusedNode& node) const {
    return node.parent < 0 ? w_.hits.target[0] : w_.nodes[node.parent].row;
  }

  auto Worse() const {
    return [this](const FusedNode& a, const FusedNode& b) {
      return a.mass < b.mass || (a.mass == b.mass && Precedes(b, a));
    };
  }

  // Puts the prefixes that go on from a row on the heap; `mass` is that of the prefix before them.
  void Expand(std::uint32_t row, double mass, std::int32_t node,
              CompletionFinder<Simd, FusedMass>* completions) {
    const std::int32_t depth = node < 0 ? 0 : w_.nodes[node].depth + 1;
    const double* values = completions->ValuesOf(row);
    const double added = mass - w_.worth[row];
    const std::uint32_t width = task_.Width(static_cast<std::uint32_t>(depth));
    for (std::uint32_t lane = 0; lane < width; ++lane) {
      w_.heap.Append({values[lane] + added, 0, lane, node, depth});
      std::push_heap(w_.heap.begin(), w_.heap.end(), Worse());
    }
  }

  // Whether a's tokens come before b's in tie order. Neither is a beginning of the other: of two
  // prefixes on the heap none is the other's ancestor.
  bool Precedes(FusedNode a, FusedNode b) const {
    while (a.depth > b.depth) a = w_.nodes[a.parent];
    while (b.depth > a.depth) b = w_.nodes[b.parent];
    while (a.parent != b.parent) {
      a = w_.nodes[a.parent];
      b = w_.nodes[b.parent];
    }
    return a.lane < b.lane;
  }

  const FusedTask& task_;
  FusedWorkspace& w_;
  double total_ = 0.0;  // ln of the mass of all paths
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_TREE_H_
