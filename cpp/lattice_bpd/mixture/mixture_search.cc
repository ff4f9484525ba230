#include "lattice_bpd/mixture/mixture_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lattice_bpd/base/keyed_noise.h"
#include "lattice_bpd/base/parallel.h"

namespace lattice_bpd {

void MixtureText::AddNoise(const KnownNoise& noise, int depth) {
  const NoiseRow row(noise.key, noise.position + static_cast<std::uint64_t>(depth));
  double before = 0.0, after = 0.0;
  for (Successor& next : merged_) {
    before += next.prob;
    const double log_prob = std::log(next.prob) + row.Gumbel(next.token);
    next.prob = std::exp(noise.sharpness * log_prob);
    after += next.prob;
  }
  for (Successor& next : merged_) next.prob *= after > 0.0 ? before / after : 0.0;
}

bool MixtureText::IsWorse(const Candidate& a, const Candidate& b) {
  if (a.prob != b.prob) return a.prob < b.prob;
  if (a.parent != b.parent) return a.parent > b.parent;
  return a.token > b.token;
}

void MixtureText::AddToFrontier(NodeNumber node, double prob, std::size_t wanted) {
  for (const Successor& next : merged_) {
    const Candidate candidate{prob * next.prob, node, next.token};
    if (!(candidate.prob > 0.0) || IsWorse(candidate, worst_wanted_)) continue;
    frontier_.push_back(candidate);
    std::push_heap(frontier_.begin(), frontier_.end(), IsWorse);
  }
  if (frontier_.size() <= 2 * wanted + 16) return;
  const auto end = frontier_.begin() + static_cast<std::ptrdiff_t>(wanted);
  std::nth_element(frontier_.begin(), end - 1, frontier_.end(),
                   [](const Candidate& a, const Candidate& b) { return IsWorse(b, a); });
  worst_wanted_ = *(end - 1);
  frontier_.erase(end, frontier_.end());
  std::make_heap(frontier_.begin(), frontier_.end(), IsWorse);
}

PrefixTree MixtureText::Search(const HeadCandidates& heads, const SearchLimits& limits) {
  const auto lock = Begin(heads, limits);
  const auto most = static_cast<std::size_t>(limits.max_nodes);
  double expected = 1.0, best_ratio = limits.costs.empty() ? 0.0 : 1.0 / limits.costs[0];
  double prob = 1.0;
  NodeNumber node = 0;
  while (tree_.size() - 1 < most) {
    if (tree_.node(node).depth < limits.max_depth) {
      if (node > 0) {
        const DraftNode& at = tree_.node(node);
        states_[static_cast<std::size_t>(node)] =
            Advance(states_[static_cast<std::size_t>(at.parent)], static_cast<Symbol>(at.token_id));
      }
      Expand(node, heads, limits);
      if (limits.noise != nullptr) AddNoise(*limits.noise, tree_.node(node).depth);
      if (limits.is_chain) frontier_.clear(), worst_wanted_ = {0.0, 0, 0};
      AddToFrontier(node, prob, most + 1 - tree_.size());
    } else if (limits.is_chain) {
      break;
    }
    if (frontier_.empty()) break;
    std::pop_heap(frontier_.begin(), frontier_.end(), IsWorse);
    const Candidate best = frontier_.back();
    frontier_.pop_back();
    if (!limits.costs.empty()) {
      // No later node is more probable than this one.
      bool may_pay = false;
      double bound = expected;
      for (std::size_t size = tree_.size(); size <= most && !may_pay; ++size) {
        bound += best.prob;
        may_pay = bound > best_ratio * limits.costs[size];
      }
      if (!may_pay) break;
    }
    node = AddNode(best.parent, best.token, best.prob);
    prob = best.prob;
    expected += prob;
    if (!limits.costs.empty()) {
      best_ratio = std::max(best_ratio, expected / limits.costs[tree_.size() - 1]);
    }
  }
  return tree_;
}

PrefixTree MixtureText::Sample(const HeadCandidates& heads, const SearchLimits& limits,
                               double least, std::uint64_t key) {
  const auto lock = Begin(heads, limits);
  double prob = 1.0;
  NodeNumber node = 0;
  while (tree_.size() - 1 < static_cast<std::size_t>(limits.max_nodes) &&
         tree_.node(node).depth < limits.max_depth && prob >= least) {
    Expand(node, heads, limits);
    const NoiseRow noise(key, num_tokens() + static_cast<std::uint64_t>(tree_.node(node).depth));
    const Successor* sampled = nullptr;
    double greatest = -std::numeric_limits<double>::infinity();
    for (const Successor& next : merged_) {
      if (!(next.prob > 0.0)) continue;
      const double value = std::log(next.prob) + noise.Gumbel(next.token);
      if (value > greatest) greatest = value, sampled = &next;
    }
    if (sampled == nullptr) {  // nothing may follow
      expansion_of_node_[static_cast<std::size_t>(node)] = -1;
      break;
    }
    prob *= sampled->prob;
    const State next = Advance(states_[static_cast<std::size_t>(node)], sampled->token);
    node = AddNode(node, sampled->token, prob);
    states_[static_cast<std::size_t>(node)] = next;
  }
  return tree_;
}

std::vector<PrefixTree> SearchMixtures(const std::vector<MixtureText*>& texts,
                                       const std::vector<HeadCandidates>& heads,
                                       const BatchLimits& limits, int threads) {
  std::vector<PrefixTree> trees(texts.size());
  RunParallel(texts.size(), ResolveThreads(threads), [&](std::size_t i) {
    SearchLimits of_text{limits.max_nodes, limits.max_depths[i], limits.is_chain, limits.costs};
    if (limits.allow != nullptr) of_text.allow = &(*limits.allow)[i];
    if (limits.noise != nullptr) of_text.noise = &(*limits.noise)[i];
    trees[i] = texts[i]->Search(heads.empty() ? HeadCandidates() : heads[i], of_text);
  });
  if (limits.costs.empty()) return trees;
  // expected[n]: tokens of all texts with at most n draft tokens each.
  std::vector<double> expected(static_cast<std::size_t>(limits.max_nodes) + 1, 0.0);
  for (const PrefixTree& tree : trees) {
    double of_tree = 1.0;
    for (std::size_t n = 0; n < expected.size(); ++n) {
      if (n > 0 && n < tree.size()) {
        of_tree += std::exp(double{tree.node(static_cast<NodeNumber>(n)).log_prob});
      }
      expected[n] += of_tree;
    }
  }
  std::size_t best = 0;
  for (std::size_t n = 1; n < expected.size(); ++n) {
    if (expected[n] * limits.costs[best] > expected[best] * limits.costs[n]) best = n;
  }
  for (PrefixTree& tree : trees) {
    if (tree.size() > best + 1) tree = tree.Cut(best + 1, tree.max_depth());
  }
  return trees;
}

}  // namespace lattice_bpd
