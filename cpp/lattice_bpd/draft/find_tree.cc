#include "lattice_bpd/draft/find_tree.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/product_rows.h"

namespace lattice_bpd {
namespace {

// ln(sum of exp(values)), on the grid. Never below the largest value, which is on the grid too.
double LogSumExp(const std::vector<double>& values) {
  constexpr double kNegligible = 45.0;  // exp(-45) is below what 256 lanes add to a double
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0.0;
  for (const double value : values) {
    if (value > largest - kNegligible) sum += std::exp(value - largest);
  }
  return ToScoreGrid(largest + std::log(sum));
}

// A prefix that may become a node.
struct Prefix {
  double mass;   // ln of it, not yet normalised
  double score;  // of its tokens and of the way to `row`
  std::uint32_t row;
  TokenId token_id;
  std::int32_t parent;
  std::int32_t depth;
};

// Keeps its memory from one search to the next.
class TreeSearch {
 public:
  std::vector<TreeNode> Run(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                            double alpha, int max_nodes) {
    sausage_ = &sausage;
    rows_.Build(sausage, lm, start, alpha);
    SumMasses();
    nodes_.clear();
    heap_.clear();
    const double total = rows_.start_constant() + masses_[rows_.start_row()];
    Expand({total, rows_.start_constant(), rows_.start_row(), kPadToken, -1, -1}, -1);
    while (!heap_.empty() && static_cast<int>(nodes_.size()) < max_nodes) {
      const Prefix best = PopBest();
      nodes_.push_back({best.token_id, best.parent, best.depth, best.mass - total});
      Expand(best, static_cast<std::int32_t>(nodes_.size()) - 1);
    }
    return {nodes_.begin(), nodes_.end()};
  }

 private:
  auto Worse() const {
    return [this](const Prefix& a, const Prefix& b) {
      return a.mass < b.mass || (a.mass == b.mass && Precedes(b, a));
    };
  }

  // masses_[r] = ln of the sum over all completions from row r of exp(score).
  void SumMasses() {
    const auto num_slots = static_cast<std::uint32_t>(sausage_->num_slots());
    masses_.resize(rows_.RowsBefore(num_slots - 1).second);
    for (std::uint32_t slot = num_slots; slot-- > 0;) {
      const auto [first, last] = rows_.RowsBefore(slot);
      for (std::uint32_t r = first; r < last; ++r) {
        rows_.ReadLanes(r, &lanes_);
        values_.resize(lanes_.size());
        for (std::size_t i = 0; i < lanes_.size(); ++i) values_[i] = MassOf(slot, lanes_[i]);
        masses_[r] = LogSumExp(values_);
      }
    }
  }

  // Of all completions that take this candidate of `slot`.
  double MassOf(std::uint32_t slot, const ProductLane& lane) const {
    const bool last = slot + 1 == sausage_->num_slots();
    return lane.Score(rows_.hits()) + (last ? 0.0 : masses_[rows_.hits()[lane.hit].target]);
  }

  // Puts the prefixes one token longer than `prefix`, which is `node`, on the heap.
  void Expand(const Prefix& prefix, std::int32_t node) {
    const auto slot = static_cast<std::uint32_t>(prefix.depth + 1);
    if (slot == sausage_->num_slots()) return;
    rows_.ReadLanes(prefix.row, &lanes_);
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      heap_.push_back({prefix.score + MassOf(slot, lanes_[i]),
                       prefix.score + lanes_[i].Score(rows_.hits()),
                       rows_.hits()[lanes_[i].hit].target, sausage_->token_ids(slot)[i], node,
                       static_cast<std::int32_t>(slot)});
      std::push_heap(heap_.begin(), heap_.end(), Worse());
    }
  }

  Prefix PopBest() {
    std::pop_heap(heap_.begin(), heap_.end(), Worse());
    const Prefix best = heap_.back();
    heap_.pop_back();
    return best;
  }

  // Whether a's tokens come before b's in tie order. Neither is a beginning of the other: of two
  // prefixes on the heap none is the other's ancestor.
  bool Precedes(const Prefix& a, const Prefix& b) const {
    TreeNode x{a.token_id, a.parent, a.depth, 0.0};
    TreeNode y{b.token_id, b.parent, b.depth, 0.0};
    while (x.depth > y.depth) x = nodes_[x.parent];
    while (y.depth > x.depth) y = nodes_[y.parent];
    while (x.parent != y.parent) {
      x = nodes_[x.parent];
      y = nodes_[y.parent];
    }
    return x.token_id < y.token_id;
  }

  const Sausage* sausage_ = nullptr;
  ProductRows rows_;
  std::vector<double> masses_;
  std::vector<ProductLane> lanes_;
  std::vector<double> values_;
  std::vector<TreeNode> nodes_;
  std::vector<Prefix> heap_;
};

}  // namespace

void CheckMaxNodes(int max_nodes) {
  if (max_nodes < 1 || max_nodes > kMaxTreeNodes) {
    throw ValueError(StrCat("max_nodes is ", max_nodes, "; expected 1..", kMaxTreeNodes));
  }
}

std::vector<TreeNode> FindTree(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                               double alpha, int max_nodes) {
  CheckMaxNodes(max_nodes);
  CheckAlpha(alpha);
  if (sausage.num_slots() == 0) return {};
  if (lm != nullptr) CheckVocabulary(sausage.max_token_id(), *lm);
  thread_local TreeSearch search;
  const bool masked = sausage.all_masked();
  return search.Run(sausage, masked ? nullptr : lm, masked ? LmState{} : start, alpha, max_nodes);
}

}  // namespace lattice_bpd
