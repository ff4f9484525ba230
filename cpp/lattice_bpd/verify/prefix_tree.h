// The drafts of one sequence as a tree: every shared prefix once.
#ifndef LATTICE_BPD_VERIFY_PREFIX_TREE_H_
#define LATTICE_BPD_VERIFY_PREFIX_TREE_H_

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

using NodeNumber = std::int32_t;

constexpr NodeNumber kNoParent = -1;

constexpr float kUnknownLogProb = std::numeric_limits<float>::quiet_NaN();

struct DraftNode {
  std::int64_t token_id;
  NodeNumber parent;
  std::int32_t depth;  // 0 without a parent
  float log_prob;      // ln of the probability of the prefix that ends here, or kUnknownLogProb
  NodeNumber first_child = kNoParent;
  NodeNumber last_child = kNoParent;
  NodeNumber next_sibling = kNoParent;
};

// Nodes in order, parents before their children. Of drafts below an exact token, that token is
// node 0 and the only one without a parent. Token ids are 64 bits wide, as models take them, and
// may be anything.
class PrefixTree {
 public:
  PrefixTree() = default;

  // An exact token, with capacity for so many nodes in all.
  PrefixTree(std::int64_t exact_token, std::size_t capacity);

  // A node after `parent`, or after none (kNoParent). Throws ValueError unless the parent is
  // there.
  NodeNumber Add(NodeNumber parent, std::int64_t token_id, float log_prob = kUnknownLogProb);

  // The first child of a node with this token, or kNoParent.
  NodeNumber Child(NodeNumber node, std::int64_t token_id) const;

  // Tokens of the children of a node, in order, each once.
  std::vector<std::int64_t> ChildTokens(NodeNumber node) const;

  // The nodes from a root to each leaf, leaves in order.
  std::vector<std::vector<NodeNumber>> Paths() const;

  // The nodes before node `count`, and those of them that are at most `max_depth` deep.
  PrefixTree Cut(std::size_t count, std::int32_t max_depth) const;

  std::size_t size() const { return nodes_.size(); }
  std::size_t num_leaves() const { return num_leaves_; }
  std::int32_t max_depth() const { return max_depth_; }
  const std::vector<DraftNode>& nodes() const { return nodes_; }
  const DraftNode& node(NodeNumber node) const { return nodes_[static_cast<std::size_t>(node)]; }

  // Copies, one value for each node.
  std::vector<std::int64_t> token_ids() const;
  std::vector<NodeNumber> parents() const;
  std::vector<std::int32_t> depths() const;

  // Throws ValueError unless there is such a node.
  void CheckNode(NodeNumber node) const;

 private:
  std::vector<DraftNode> nodes_;
  std::size_t num_leaves_ = 0;
  std::int32_t max_depth_ = 0;
};

// The nodes of these tokens and parents. Throws ValueError as Add, and where lengths differ.
PrefixTree TreeOfParents(Span<std::int64_t> token_ids, Span<NodeNumber> parents);

// A row of drafts or of nodes, of whatever integers and strides the caller has.
template <typename T>
struct IntegerView {
  const T* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::ptrdiff_t row_stride = 0;  // in elements
  std::ptrdiff_t column_stride = 0;

  std::int64_t at(std::size_t row, std::size_t column) const {
    return data[static_cast<std::ptrdiff_t>(row) * row_stride +
                static_cast<std::ptrdiff_t>(column) * column_stride];
  }
};

// The exact token and, below it, the nodes of a draft tree whose parents are numbered without it,
// -1 for first tokens. Nodes deeper than `max_depth` tokens are left out. `log_probs` is of the
// nodes, or empty where they are not known. Throws ValueError where lengths differ or a parent does
// not precede its child.
template <typename T, typename U>
PrefixTree TreeOfNodes(std::int64_t exact_token, const IntegerView<T>& token_ids,
                       const IntegerView<U>& parents, std::int32_t max_depth,
                       Span<float> log_probs = {});

// The prefix tree of drafts (rows), best first; a negative id ends one. The best draft becomes
// nodes 1, 2, ..
template <typename T>
PrefixTree TreeOfDrafts(std::int64_t exact_token, const IntegerView<T>& drafts);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_PREFIX_TREE_H_
