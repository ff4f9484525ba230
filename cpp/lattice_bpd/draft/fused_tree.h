// The last step of the tree search (fused_search.h): nodes by decreasing value, best first.
// `Ranking` says what the value is (fused_rankings.h); a prefix has at least the value of what is
// longer.
#ifndef LATTICE_BPD_DRAFT_FUSED_TREE_H_
#define LATTICE_BPD_DRAFT_FUSED_TREE_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_completions.h"
#include "lattice_bpd/draft/fused_hits.h"
#include "lattice_bpd/draft/fused_rankings.h"

namespace lattice_bpd {
namespace {

template <typename Simd, typename Ranking>
class TreeSearch {
 public:
  TreeSearch(const FusedTask& task, FusedWorkspace* workspace, Ranking ranking)
      : task_(task), w_(*workspace), ranking_(std::move(ranking)) {}

  // Those not yet on the heap rank below its best. `total` is ln of the root's probability.
  void Run(std::uint32_t max_nodes, double total, RowValues<Simd>* values_of) {
    w_.nodes.Clear();
    w_.heap.Clear();
    w_.children.Clear();
    w_.fork_begin.Clear();
    total_ = total;
    Expand({total, total, w_.hits.target[0], 0, -1, -1}, -1, values_of);
    while (w_.heap.size() > 0 && w_.nodes.size() < max_nodes) {
      std::pop_heap(w_.heap.begin(), w_.heap.end(), Worse());
      FusedNode node = w_.heap.end()[-1];
      w_.heap.Resize(w_.heap.size() - 1);
      PushBest(node.parent);
      if (Ranking::kSkipsImpossible && node.value == kMinusInfinity) break;
      const bool longer = SlotOf(node) + 1 < task_.num_slots;
      if (longer) node.row = TargetOf(task_, w_, RowBefore(node), node.lane);
      w_.nodes.Append(node);
      if (longer) {
        Expand(node, static_cast<std::int32_t>(w_.nodes.size()) - 1, values_of);
      } else {
        w_.fork_begin.Append(static_cast<std::uint32_t>(w_.children.size()));
      }
    }
  }

  // ln of the mass of all paths.
  static double TotalMass(const FusedWorkspace& workspace) {
    return workspace.hits.constant[0] + workspace.worth[workspace.hits.target[0]];
  }

  void WriteNodes(std::vector<TreeNode>* out) const {
    out->clear();
    for (const FusedNode& node : w_.nodes) {
      const Symbol symbol = w_.symbols[task_.Lane(SlotOf(node), node.lane)];
      out->push_back(
          {static_cast<TokenId>(symbol), node.parent, node.depth, node.log_prob - total_});
    }
  }

 private:
  static constexpr std::uint32_t kWaits = 1;  // in `row` of a child that is not on the heap yet

  static std::uint32_t SlotOf(const FusedNode& node) {
    return static_cast<std::uint32_t>(node.depth);
  }
  std::uint32_t RowBefore(const FusedNode& node) const {
    return node.parent < 0 ? w_.hits.target[0] : w_.nodes[node.parent].row;
  }

  auto Worse() const {
    return [this](const FusedNode& a, const FusedNode& b) {
      return a.value < b.value || (a.value == b.value && Precedes(b, a));
    };
  }

  // The prefixes that extend node `index` by one token. Only the best of a node's children that are
  // not nodes yet is on the heap: most of the others are never needed.
  void Expand(const FusedNode& node, std::int32_t index, RowValues<Simd>* values_of) {
    const auto slot = static_cast<std::uint32_t>(node.depth + 1);
    const double* values = values_of->Of(node.row);
    const std::uint32_t width = task_.Width(slot);
    const std::size_t begin = w_.children.size();
    w_.fork_begin.Append(static_cast<std::uint32_t>(begin));
    w_.children.Resize(begin + width);
    FusedNode* children = w_.children.data() + begin;
    ranking_.Rank({node, index, slot, values, width, w_.worth[node.row]}, children);
    for (std::uint32_t lane = 0; lane < width; ++lane) {
      children[lane].row = kWaits;
      children[lane].lane = lane;
      children[lane].parent = index;
      children[lane].depth = node.depth + 1;
    }
    PushBest(index);
  }

  // The best child of a node that still waits, equal ones by lane, onto the heap.
  void PushBest(std::int32_t parent) {
    const std::uint32_t slot = parent < 0 ? 0 : SlotOf(w_.nodes[parent]) + 1;
    FusedNode* children = w_.children.data() + w_.fork_begin[parent + 1];
    FusedNode* best = nullptr;
    for (FusedNode* child = children; child != children + task_.Width(slot); ++child) {
      if (child->row == kWaits && (best == nullptr || child->value > best->value)) best = child;
    }
    if (best == nullptr) return;
    best->row = 0;
    w_.heap.Append(*best);
    std::push_heap(w_.heap.begin(), w_.heap.end(), Worse());
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
  Ranking ranking_;
  double total_ = 0.0;
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_TREE_H_
