#include "lattice_bpd/lm/context_trie.h"

#include <algorithm>
#include <utility>

namespace lattice_bpd {
namespace {

constexpr std::size_t kSmallestTable = 64;

// Up to so many children are marked anew when one is gone.
constexpr std::uint32_t kMarkedChildren = 16;

}  // namespace

ContextTrie::ContextTrie(int order) : order_(order) { Clear(); }

void ContextTrie::Clear() {
  text_.clear();
  nodes_.assign(1, ContextNode{});
  child_marks_.assign(1, 0);
  free_.clear();
  table_.assign(kSmallestTable, {0, kNoNode});
  mask_ = kSmallestTable - 1;
  num_ends_ = 1;
}

void ContextTrie::Append(Symbol word) {
  text_.push_back(word);
  std::uint32_t ends[kMaxOrder + 1] = {kRoot};
  for (int length = 1; length <= num_ends_; ++length) {
    const std::uint32_t parent = ends_[length - 1];
    std::uint32_t node = Find(parent, word);
    if (node == kNoNode) {
      node = Add(parent, word);
    } else if (nodes_[parent].first_child != node) {
      Unlink(nodes_[node]);
      PutFirst(node);
    }
    ++nodes_[node].count;
    ++nodes_[parent].successors;
    ends[length] = node;
  }
  num_ends_ = std::min(num_ends_ + 1, order_);
  std::copy(ends, ends + num_ends_, ends_);
}

void ContextTrie::RemoveFirst() {
  std::uint32_t path[kMaxOrder + 1] = {kRoot};
  for (int length = 1; length <= order_; ++length) {
    path[length] = Find(path[length - 1], text_[static_cast<std::size_t>(length) - 1]);
  }
  for (int length = order_; length >= 1; --length) {
    --nodes_[path[length - 1]].successors;
    if (--nodes_[path[length]].count == 0) Remove(path[length]);
  }
  text_.pop_front();
}

ContextState ContextTrie::StateOf(Span<TokenId> history) const {
  ContextState state;
  const std::size_t most = std::min<std::size_t>(order_ - 1, history.size());
  for (std::size_t length = 1; length <= most; ++length) {
    std::uint32_t node = kRoot;
    for (const TokenId token : history.Last(length)) {
      node = Find(node, static_cast<Symbol>(token));
      if (node == kNoNode) return state;
    }
    if (nodes_[node].successors == 0) return state;
    state.nodes[state.length++] = node;
  }
  return state;
}

ContextState ContextTrie::StateOfText() const {
  ContextState state;
  for (int length = 1; length < num_ends_; ++length) {
    if (nodes_[ends_[length]].successors == 0) break;
    state.nodes[state.length++] = ends_[length];
  }
  return state;
}

ContextState ContextTrie::Advance(const ContextState& state, Symbol word) const {
  ContextState next;
  for (std::uint32_t length = 0; length <= state.length; ++length) {
    if (length + 1 == static_cast<std::uint32_t>(order_)) break;
    const std::uint32_t parent = length == 0 ? kRoot : state.nodes[length - 1];
    if (!MayHave(parent, word)) break;
    const std::uint32_t node = Find(parent, word);
    if (node == kNoNode || nodes_[node].successors == 0) break;
    next.nodes[next.length++] = node;
  }
  return next;
}

std::uint32_t ContextTrie::Add(std::uint32_t parent, Symbol word) {
  std::uint32_t added;
  if (free_.empty()) {
    added = static_cast<std::uint32_t>(nodes_.size());
    nodes_.emplace_back();
    child_marks_.push_back(0);
  } else {
    added = free_.back();
    free_.pop_back();
    nodes_[added] = {};
    child_marks_[added] = 0;
  }
  child_marks_[parent] |= MarkOf(word);
  nodes_[added].word = word;
  nodes_[added].parent = parent;
  PutFirst(added);
  ++nodes_[parent].distinct;
  if (2 * (nodes_.size() - free_.size()) > table_.size()) GrowTable();
  Insert({Hash(parent, word), added});
  return added;
}

void ContextTrie::PutFirst(std::uint32_t node) {
  ContextNode& parent = nodes_[nodes_[node].parent];
  nodes_[node].previous = kNoNode;
  nodes_[node].next = parent.first_child;
  if (parent.first_child != kNoNode) nodes_[parent.first_child].previous = node;
  parent.first_child = node;
}

void ContextTrie::Unlink(const ContextNode& node) {
  if (node.previous == kNoNode) {
    nodes_[node.parent].first_child = node.next;
  } else {
    nodes_[node.previous].next = node.next;
  }
  if (node.next != kNoNode) nodes_[node.next].previous = node.previous;
}

void ContextTrie::Remove(std::uint32_t node) {
  Erase(node);
  const ContextNode& gone = nodes_[node];
  ContextNode& parent = nodes_[gone.parent];
  --parent.distinct;
  Unlink(gone);
  free_.push_back(node);
  if (parent.distinct <= kMarkedChildren) MarkChildren(gone.parent);
}

// A mark that stays though its child is gone costs a search, no more: where there are many children
// most marks are set anyway.
void ContextTrie::MarkChildren(std::uint32_t node) {
  child_marks_[node] = 0;
  for (std::uint32_t at = nodes_[node].first_child; at != kNoNode; at = nodes_[at].next) {
    child_marks_[node] |= MarkOf(nodes_[at].word);
  }
}

void ContextTrie::Insert(Entry entry) {
  std::size_t at = entry.hash & mask_;
  while (table_[at].node != kNoNode) at = (at + 1) & mask_;
  table_[at] = entry;
}

// Backward-shift deletion: entries after the hole that a collision pushed there move up.
void ContextTrie::Erase(std::uint32_t node) {
  std::size_t hole = Hash(nodes_[node].parent, nodes_[node].word) & mask_;
  while (table_[hole].node != node) hole = (hole + 1) & mask_;
  for (std::size_t at = (hole + 1) & mask_; table_[at].node != kNoNode; at = (at + 1) & mask_) {
    const std::size_t home = table_[at].hash & mask_;
    if (((at - home) & mask_) < ((at - hole) & mask_)) continue;  // its home is after the hole
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole].node = kNoNode;
}

void ContextTrie::GrowTable() {
  std::vector<Entry> old(2 * table_.size(), {0, kNoNode});
  std::swap(old, table_);
  mask_ = table_.size() - 1;
  for (const Entry& entry : old) {
    if (entry.node != kNoNode) Insert(entry);
  }
}

}  // namespace lattice_bpd
