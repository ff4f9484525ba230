// Counts of the n-grams of a growing text, or of its last tokens: tokens join at the end and leave
// at the front. A forward trie with hashed edges; node 0 is the empty history.
//
// Cost: O(order) for each token that joins or leaves, 40 bytes and two table entries for each
// distinct n-gram.
#ifndef LATTICE_BPD_LM_CONTEXT_TRIE_H_
#define LATTICE_BPD_LM_CONTEXT_TRIE_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"
#include "lattice_bpd/lm/packed_level.h"

namespace lattice_bpd {

// An n-gram of the text. Children, the n-grams that are one token longer, are a linked list, the
// one that occurred last first.
struct ContextNode {
  Symbol word = 0;               // the last token
  std::uint32_t parent = 0;      // the n-gram without it
  std::uint32_t count = 0;       // times it occurs
  std::uint32_t successors = 0;  // times it is followed by a token
  std::uint32_t distinct = 0;    // different tokens after it: the number of children
  std::uint32_t first_child = kNoNode;
  std::uint32_t next = kNoNode;  // among the parent's children
  std::uint32_t previous = kNoNode;
};

// The suffixes of a history that occur with a successor: nodes[l] is that of l + 1 tokens.
struct ContextState {
  std::uint32_t length = 0;
  std::uint32_t nodes[kMaxOrder - 1] = {};
};

class ContextTrie {
 public:
  static constexpr std::uint32_t kRoot = 0;

  // Counts n-grams of up to `order` tokens.
  explicit ContextTrie(int order);

  // Counts the n-grams that end in a new last token.
  void Append(Symbol word);

  // Takes back the n-grams that begin with the first token. The text must have more than `order`
  // tokens.
  void RemoveFirst();

  void Clear();

  int order() const { return order_; }
  const std::deque<Symbol>& text() const { return text_; }

  const ContextNode& node(std::uint32_t index) const { return nodes_[index]; }

  // The n-gram of a node and one more token; kNoNode where it does not occur.
  std::uint32_t Find(std::uint32_t parent, Symbol word) const {
    const std::uint32_t hash = Hash(parent, word);
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      const Entry entry = table_[at];
      if (entry.node == kNoNode) return kNoNode;
      if (entry.hash != hash) continue;
      if (nodes_[entry.node].word == word && nodes_[entry.node].parent == parent) return entry.node;
    }
  }

  // False only where Find(parent, word) would find nothing. Reads one word of memory for all words.
  bool MayHave(std::uint32_t parent, Symbol word) const {
    return (child_marks_[parent] & MarkOf(word)) != 0;
  }

  // Of a history, its latest token last.
  ContextState StateOf(Span<TokenId> history) const;

  // Of the text itself.
  ContextState StateOfText() const;

  // Of the history of `state` and one more token.
  ContextState Advance(const ContextState& state, Symbol word) const;

 private:
  // The hash is in the table too, so that a search that fails reads no node.
  struct Entry {
    std::uint32_t hash;
    std::uint32_t node;
  };

  static std::uint32_t Hash(std::uint32_t parent, Symbol word) {
    const std::uint64_t key = std::uint64_t{parent} << 32 | word;
    return static_cast<std::uint32_t>((key * 0x9e3779b97f4a7c15u) >> 32);
  }

  static std::uint64_t MarkOf(Symbol word) {
    return std::uint64_t{1} << (word * 0x9e3779b9u >> 26);
  }

  std::uint32_t Add(std::uint32_t parent, Symbol word);
  void PutFirst(std::uint32_t node);
  void Unlink(const ContextNode& node);
  void Remove(std::uint32_t node);
  void MarkChildren(std::uint32_t node);
  void Insert(Entry entry);
  void Erase(std::uint32_t node);
  void GrowTable();

  int order_;
  std::deque<Symbol> text_;
  std::vector<ContextNode> nodes_;
  std::vector<std::uint64_t> child_marks_;  // of each node: the marks of its children's words
  std::vector<std::uint32_t> free_;         // nodes to use again
  std::vector<Entry> table_;                // open addressing, linear probing
  std::size_t mask_ = 0;
  std::uint32_t ends_[kMaxOrder] = {};  // of the text's last n tokens, n = 0 .. num_ends_ - 1
  int num_ends_ = 1;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_CONTEXT_TRIE_H_
