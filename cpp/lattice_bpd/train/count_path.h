// The n-grams that the records of a sorted list open and close: a trie walked depth first.
//
//   record        opens                      closes (counts known then)
//   a | b c  x3   a, a b, a b c
//   a | b d  x1   a b d                      a b c: 3
//   a | c -  x2   a c                        a b d: 1, a b: 4
//   end                                      a c: 2, a: 6
#ifndef LATTICE_BPD_TRAIN_COUNT_PATH_H_
#define LATTICE_BPD_TRAIN_COUNT_PATH_H_

#include <array>
#include <cstdint>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/continuation_keys.h"
#include "lattice_bpd/train/count_file.h"

namespace lattice_bpd {

struct OpenNode {
  Symbol word = 0;
  std::uint64_t count = 0;
  std::uint64_t context_count = 0;  // of the occurrences that another symbol follows
  std::uint32_t first_child = 0;    // for the caller
};

// Calls open(level, &node) where an n-gram of order level + 1 begins and close(level, node) where
// it ends, in lexicographic order on every level; children close before their parent.
template <typename Open, typename Close>
class CountPath {
 public:
  CountPath(const KeyLayout& layout, const Vocabulary& vocabulary, Open open, Close close)
      : layout_(layout),
        num_symbols_(vocabulary.num_symbols()),
        open_(std::move(open)),
        close_(std::move(close)) {}

  // Records must come in strictly rising order. O(symbols that differ from the record before).
  // Throws FormatError for a symbol outside the vocabulary.
  void Add(const CountRecord& record) {
    int shared = 0;
    if (depth_ > 0 && path_[0].word == record.symbol) {
      shared = 1 + layout_.CommonPrefix(last_, record.key);
    }
    while (depth_ > shared) Close1();
    if (depth_ == 0) Open1(record.symbol);
    for (int position = depth_ - 1; position < layout_.length; ++position) {
      const std::uint32_t plus_one = layout_.SymbolPlusOne(record.key, position);
      if (plus_one == 0) break;
      Open1(plus_one - 1);
    }
    path_[depth_ - 1].count += record.count;
    last_ = record.key;
  }

  void CloseAll() {
    while (depth_ > 0) Close1();
  }

 private:
  void Open1(Symbol word) {
    if (word >= num_symbols_) {
      throw FormatError(StrCat("n-gram counts: symbol ", word, " is outside the vocabulary of ",
                               num_symbols_, " symbols; the counts file was altered, count again"));
    }
    path_[depth_] = OpenNode{word, 0, 0, 0};
    open_(depth_, &path_[depth_]);
    ++depth_;
  }

  void Close1() {
    OpenNode& node = path_[--depth_];
    node.count += node.context_count;
    if (depth_ > 0) path_[depth_ - 1].context_count += node.count;
    close_(depth_, node);
  }

  const KeyLayout layout_;
  const std::uint32_t num_symbols_;
  Open open_;
  Close close_;
  std::array<OpenNode, kMaxOrder> path_{};
  int depth_ = 0;  // open nodes
  Key128 last_ = 0;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_COUNT_PATH_H_
