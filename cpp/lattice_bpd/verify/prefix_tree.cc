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

}  // namespace

NodeNumber PrefixTree::Add(NodeNumber parent, std::int64_t token_id) {
  const auto node = static_cast<NodeNumber>(size());
  CheckParent(node, parent);
  std::int32_t depth = 0;
  bool is_new_leaf = true;
  if (parent != kNoParent) {
    const auto above = static_cast<std::size_t>(parent);
    depth = depths_[above] + 1;
    is_new_leaf = first_child_[above] != kNoParent;  // else the parent was one
    (is_new_leaf ? next_sibling_[static_cast<std::size_t>(last_child_[above])]
                 : first_child_[above]) = node;
    last_child_[above] = node;
  }
  token_ids_.push_back(token_id);
  parents_.push_back(parent);
  depths_.push_back(depth);
  first_child_.push_back(kNoParent);
  last_child_.push_back(kNoParent);
  next_sibling_.push_back(kNoParent);
  num_leaves_ += is_new_leaf ? 1 : 0;
  max_depth_ = std::max(max_depth_, depth);
  return node;
}

NodeNumber PrefixTree::Child(NodeNumber node, std::int64_t token_id) const {
  NodeNumber child = first_child_[static_cast<std::size_t>(node)];
  while (child != kNoParent && token_ids_[static_cast<std::size_t>(child)] != token_id) {
    child = next_sibling_[static_cast<std::size_t>(child)];
  }
  return child;
}

std::vector<std::int64_t> PrefixTree::ChildTokens(NodeNumber node) const {
  std::vector<std::int64_t> tokens;
  NodeNumber child = first_child_[static_cast<std::size_t>(node)];
  for (; child != kNoParent; child = next_sibling_[static_cast<std::size_t>(child)]) {
    const std::int64_t token = token_ids_[static_cast<std::size_t>(child)];
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  return tokens;
}

std::vector<std::vector<NodeNumber>> PrefixTree::Paths() const {
  std::vector<std::vector<NodeNumber>> paths;
  for (std::size_t leaf = 0; leaf < size(); ++leaf) {
    if (first_child_[leaf] != kNoParent) continue;
    std::vector<NodeNumber> path(static_cast<std::size_t>(depths_[leaf]) + 1);
    auto node = static_cast<NodeNumber>(leaf);
    for (auto place = path.rbegin(); place != path.rend(); ++place) {
      *place = node;
      node = parents_[static_cast<std::size_t>(node)];
    }
    paths.push_back(std::move(path));
  }
  return paths;
}

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
                       const IntegerView<U>& parents, std::int32_t max_depth) {
  CheckLengths(token_ids.columns, parents.columns);
  PrefixTree tree;
  tree.Add(kNoParent, exact_token);
  std::vector<NodeNumber> numbers(token_ids.columns, kNoParent);  // kNoParent: left out
  for (std::size_t i = 0; i < token_ids.columns; ++i) {
    const std::int64_t parent = parents.at(0, i);
    CheckParent(static_cast<std::int64_t>(i), parent);
    const NodeNumber above = parent < 0 ? 0 : numbers[static_cast<std::size_t>(parent)];
    if (above == kNoParent || tree.depth(above) >= max_depth) continue;
    numbers[i] = tree.Add(above, token_ids.at(0, i));
  }
  return tree;
}

template <typename T>
PrefixTree TreeOfDrafts(std::int64_t exact_token, const IntegerView<T>& drafts) {
  PrefixTree tree;
  tree.Add(kNoParent, exact_token);
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
                                const IntegerView<std::int32_t>&, std::int32_t);
template PrefixTree TreeOfNodes(std::int64_t, const IntegerView<std::int64_t>&,
                                const IntegerView<std::int64_t>&, std::int32_t);
template PrefixTree TreeOfDrafts(std::int64_t, const IntegerView<std::int32_t>&);
template PrefixTree TreeOfDrafts(std::int64_t, const IntegerView<std::int64_t>&);

}  // namespace lattice_bpd
