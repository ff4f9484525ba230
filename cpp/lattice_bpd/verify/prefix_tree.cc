#include "lattice_bpd/verify/prefix_tree.h"

#include <algorithm>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

void CheckParent(std::int64_t node, std::int64_t parent) {
  if (parent >= kNoParent && parent < node) return;
  throw ValueError(StrCat("PrefixTree: node ", node, " has parent ", parent, "; expected -1..",
                          node - 1, "; list parents before their children"));
}

void CheckLengths(std::size_t token_ids, std::size_t parents) {
  if (token_ids == parents) return;
  throw ValueError(StrCat("PrefixTree: ", token_ids, " token ids and ", parents,
                          " parents; expected as many of each"));
}

template <typename T>
std::vector<T> Collect(const std::vector<DraftNode>& nodes, T DraftNode::* member) {
  std::vector<T> values;
  values.reserve(nodes.size());
  for (const DraftNode& node : nodes) values.push_back(node.*member);
  return values;
}

}  // namespace

PrefixTree::PrefixTree(std::int64_t exact_token, std::size_t capacity) {
  nodes_.reserve(capacity);
  Add(kNoParent, exact_token, 0.0F);
}

NodeNumber PrefixTree::Add(NodeNumber parent, std::int64_t token_id, float log_prob) {
  const auto node = static_cast<NodeNumber>(size());
  CheckParent(node, parent);
  std::int32_t depth = 0;
  bool is_new_leaf = true;
  if (parent != kNoParent) {
    DraftNode& above = nodes_[static_cast<std::size_t>(parent)];
    depth = above.depth + 1;
    is_new_leaf = above.first_child != kNoParent;  // else the parent was one
    (is_new_leaf ? nodes_[static_cast<std::size_t>(above.last_child)].next_sibling
                 : above.first_child) = node;
    above.last_child = node;
  }
  nodes_.push_back({token_id, parent, depth, log_prob});
  num_leaves_ += is_new_leaf ? 1 : 0;
  max_depth_ = std::max(max_depth_, depth);
  return node;
}

NodeNumber PrefixTree::Child(NodeNumber node, std::int64_t token_id) const {
  NodeNumber child = this->node(node).first_child;
  while (child != kNoParent && this->node(child).token_id != token_id) {
    child = this->node(child).next_sibling;
  }
  return child;
}

std::vector<std::int64_t> PrefixTree::ChildTokens(NodeNumber node) const {
  std::vector<std::int64_t> tokens;
  NodeNumber child = this->node(node).first_child;
  for (; child != kNoParent; child = this->node(child).next_sibling) {
    const std::int64_t token = this->node(child).token_id;
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  return tokens;
}

std::vector<std::vector<NodeNumber>> PrefixTree::Paths() const {
  std::vector<std::vector<NodeNumber>> paths;
  for (std::size_t leaf = 0; leaf < size(); ++leaf) {
    if (nodes_[leaf].first_child != kNoParent) continue;
    std::vector<NodeNumber> path(static_cast<std::size_t>(nodes_[leaf].depth) + 1);
    auto node = static_cast<NodeNumber>(leaf);
    for (auto entry = path.rbegin(); entry != path.rend(); ++entry) {
      *entry = node;
      node = this->node(node).parent;
    }
    paths.push_back(std::move(path));
  }
  return paths;
}

PrefixTree PrefixTree::Cut(std::size_t count, std::int32_t max_depth) const {
  PrefixTree tree;
  std::vector<NodeNumber> numbers(std::min(count, size()), kNoParent);  // kNoParent: left out
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const DraftNode& node = nodes_[i];
    if (node.depth > max_depth) continue;
    const bool is_root = node.parent == kNoParent;
    const NodeNumber above = is_root ? kNoParent : numbers[static_cast<std::size_t>(node.parent)];
    numbers[i] = tree.Add(above, node.token_id, node.log_prob);
  }
  return tree;
}

std::vector<std::int64_t> PrefixTree::token_ids() const {
  return Collect(nodes_, &DraftNode::token_id);
}

std::vector<NodeNumber> PrefixTree::parents() const { return Collect(nodes_, &DraftNode::parent); }

std::vector<std::int32_t> PrefixTree::depths() const { return Collect(nodes_, &DraftNode::depth); }

void PrefixTree::CheckNode(NodeNumber node) const {
  if (node < 0 || static_cast<std::size_t>(node) >= size()) {
    throw ValueError(StrCat("PrefixTree: there is no node ", node, "; expected 0..",
                            static_cast<std::int64_t>(size()) - 1));
  }
}

PrefixTree TreeOfParents(Span<std::int64_t> token_ids, Span<NodeNumber> parents) {
  CheckLengths(token_ids.size(), parents.size());
  PrefixTree tree;
  for (std::size_t i = 0; i < parents.size(); ++i) tree.Add(parents[i], token_ids[i]);
  return tree;
}

template <typename T, typename U>
PrefixTree TreeOfNodes(std::int64_t exact_token, const IntegerView<T>& token_ids,
                       const IntegerView<U>& parents, std::int32_t max_depth,
                       Span<float> log_probs) {
  CheckLengths(token_ids.columns, parents.columns);
  if (!log_probs.empty() && log_probs.size() != token_ids.columns) {
    throw ValueError(StrCat("PrefixTree: ", log_probs.size(), " log probabilities of ",
                            token_ids.columns, " nodes; expected one for each, or none"));
  }
  PrefixTree tree(exact_token, token_ids.columns + 1);
  std::vector<NodeNumber> numbers(token_ids.columns, kNoParent);  // kNoParent: left out
  for (std::size_t i = 0; i < token_ids.columns; ++i) {
    const std::int64_t parent = parents.at(0, i);
    CheckParent(static_cast<std::int64_t>(i), parent);
    const NodeNumber above = parent < 0 ? 0 : numbers[static_cast<std::size_t>(parent)];
    if (above == kNoParent || tree.node(above).depth >= max_depth) continue;
    const float log_prob = log_probs.empty() ? kUnknownLogProb : log_probs[i];
    numbers[i] = tree.Add(above, token_ids.at(0, i), log_prob);
  }
  return tree;
}

template <typename T>
PrefixTree TreeOfDrafts(std::int64_t exact_token, const IntegerView<T>& drafts) {
  PrefixTree tree(exact_token, drafts.columns + 1);
  for (std::size_t row = 0; row < drafts.rows; ++row) {
    NodeNumber node = 0;
    for (std::size_t column = 0; column < drafts.columns; ++column) {
      const std::int64_t token = drafts.at(row, column);
      if (token < 0) break;
      const NodeNumber child = tree.Child(node, token);
      node = child == kNoParent ? tree.Add(node, token) : child;
    }
  }
  return tree;
}

template PrefixTree TreeOfNodes(std::int64_t, const IntegerView<std::int32_t>&,
                                const IntegerView<std::int32_t>&, std::int32_t, Span<float>);
template PrefixTree TreeOfNodes(std::int64_t, const IntegerView<std::int64_t>&,
                                const IntegerView<std::int64_t>&, std::int32_t, Span<float>);
template PrefixTree TreeOfDrafts(std::int64_t, const IntegerView<std::int32_t>&);
template PrefixTree TreeOfDrafts(std::int64_t, const IntegerView<std::int64_t>&);

}  // namespace lattice_bpd
