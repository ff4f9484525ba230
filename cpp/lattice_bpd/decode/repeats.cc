#include "lattice_bpd/decode/repeats.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr double kForget = 0.99;
constexpr double kLeast = 0.02;  // least probability of a node
constexpr double kLeastGain =
    0.1;  // least number of additional tokens that a call is expected to accept

// A tree under construction, with its nodes' log probabilities, which may increase.
class GrowingTree {
 public:
  GrowingTree(const PrefixTree& tree, const RepeatingText& text, std::size_t max_nodes)
      : tree_(tree), text_(text), num_drafted_(tree.size()), max_nodes_(max_nodes) {
    for (const DraftNode& node : tree.nodes()) {
      if (std::isnan(node.log_prob)) {
        throw ValueError("a node has no log probability; expected a tree of a search");
      }
      log_probs_.push_back(node.log_prob);
    }
    log_probs_[0] = 0.0;
    floor_ = std::log(kLeast);
    if (num_drafted_ > max_nodes) floor_ = std::max(floor_, log_probs_.back());
    for (std::size_t i = 0; i < text.rates().size(); ++i) log_rates_[i] = text.rates()[i].log();
  }

  // Adds what followed the text, and after nodes of the last slot what followed the text with them.
  void Extend(std::int32_t num_slots, std::int32_t max_depth) {
    const auto most = static_cast<std::int32_t>(
        std::min(static_cast<std::size_t>(std::max(max_depth, 0)), max_nodes_));
    ExtendNode(0, {}, most);
    if (num_slots >= max_depth) return;
    const double best = *std::max_element(log_rates_.begin(), log_rates_.end());
    for (std::size_t i = 1; i < num_drafted_; ++i) {
      const auto node = static_cast<NodeNumber>(i);
      if (tree_.node(node).depth != num_slots || log_probs_[i] + best <= floor_) continue;
      ExtendNode(node, PathTo(node), most - num_slots);
    }
  }

  bool IsWorthIt() const {
    double gain = 0.0;
    for (std::size_t i = num_drafted_; i < log_probs_.size(); ++i) gain += std::exp(log_probs_[i]);
    return gain >= kLeastGain;
  }

  // The most probable nodes, by decreasing probability.
  PrefixTree Best() const {
    std::vector<std::size_t> order(log_probs_.size() - 1);
    std::iota(order.begin(), order.end(), std::size_t{1});
    std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      return log_probs_[a] > log_probs_[b];
    });
    order.resize(std::min(order.size(), max_nodes_));
    std::vector<NodeNumber> numbers(log_probs_.size(), kNoParent);
    PrefixTree best(tree_.nodes()[0].token_id, order.size() + 1);
    numbers[0] = 0;
    for (const std::size_t i : order) {
      const DraftNode& node = tree_.nodes()[i];
      const NodeNumber above = numbers[static_cast<std::size_t>(node.parent)];
      numbers[i] = best.Add(above, node.token_id, static_cast<float>(log_probs_[i]));
    }
    return best;
  }

 private:
  std::vector<std::int64_t> PathTo(NodeNumber node) const {
    std::vector<std::int64_t> path;
    for (; node > 0; node = tree_.node(node).parent) path.push_back(tree_.node(node).token_id);
    std::reverse(path.begin(), path.end());
    return path;
  }

  // Adds to a node up to `most` tokens that followed the match of the text and its path. Each has
  // the probability of the one before it times the rate, or its own where that is higher; new ones
  // that are not above the floor are left out.
  void ExtendNode(NodeNumber node, const std::vector<std::int64_t>& path, std::int32_t most) {
    const Match match = text_.index().Find(path);
    double log_prob = log_probs_[static_cast<std::size_t>(node)];
    if (match.size == 0 || most <= 0 || log_prob + log_rates_[match.size] <= floor_) return;
    std::size_t size = match.size;
    const auto count = static_cast<std::size_t>(most);
    for (const std::int64_t token : text_.index().Follow(match.position, count, path)) {
      log_prob += log_rates_[size];
      NodeNumber child = tree_.Child(node, token);
      if (child == kNoParent) {
        if (log_prob <= floor_) return;
        child = tree_.Add(node, token);
        log_probs_.push_back(log_prob);
      }
      double& own = log_probs_[static_cast<std::size_t>(child)];
      log_prob = own = std::max(own, log_prob);
      node = child;
      size = std::min(size + 1, kLongestMatch);
    }
  }

  PrefixTree tree_;
  const RepeatingText& text_;
  std::size_t num_drafted_;
  std::size_t max_nodes_;
  double floor_ = 0.0;
  std::vector<double> log_probs_;
  std::array<double, kLongestMatch + 1> log_rates_{};
};

}  // namespace

double RepeatRate::log() const { return std::log((correct + 1.0) / (total + 2.0)); }

void RepeatingText::Append(Span<std::int64_t> tokens) {
  for (const std::int64_t token : tokens) {
    const Match match = index_.Append(token);
    if (match.size == 0) continue;
    RepeatRate& rate = rates_[match.size];
    const bool is_right = index_.tokens()[match.position] == token;
    rate.correct = kForget * rate.correct + (is_right ? 1.0 : 0.0);
    rate.total = kForget * rate.total + 1.0;
  }
}

std::optional<PrefixTree> RepeatingText::Extend(const PrefixTree& tree, std::int32_t num_slots,
                                                std::int32_t max_depth,
                                                std::size_t max_nodes) const {
  if (tree.size() == 0) throw ValueError("PrefixTree: no nodes");
  GrowingTree growing(tree, *this, max_nodes);
  growing.Extend(num_slots, max_depth);
  if (!growing.IsWorthIt()) return std::nullopt;
  return growing.Best();
}

}  // namespace lattice_bpd
