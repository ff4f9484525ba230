// Batched lookup of the nodes of all n-grams of a text.
//
//   text    a  b  c  d          nodes(0)[i]  a    b    c   d      node of the symbol at i
//                               nodes(1)[i]  ab   bc   cd  -      of the two symbols from i on
//                               nodes(2)[i]  abc  bcd  -   -      kNoNode: not in the LM
//
// A text is known in advance, and n-grams that start at different positions are independent. So the
// lookups of a block of starts go level by level, each of them split where it would wait for
// memory: what one start waits for arrives while the others are served. One after the other, as
// BackoffLm::Query must, each lookup waits alone.
#ifndef LATTICE_BPD_LM_TEXT_NODES_H_
#define LATTICE_BPD_LM_TEXT_NODES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

constexpr std::size_t kTextBlock = 256;  // starts at a time

class TextNodes {
 public:
  // `lm` must outlive this. Starts before the first block are in no n-gram.
  explicit TextNodes(const BackoffLm& lm);

  // Looks up what starts at the first `count` symbols (at most kTextBlock) of `symbols`, which are
  // followed by the rest of the text, or by the next order - 1 symbols at least.
  // Starts of the call before are kept as those before these. O(order) searches for each.
  void LookUp(Span<Symbol> symbols, std::size_t count);

  // Of the n-gram of `length` symbols that ends with the symbol at `end` of the block, or kNoNode.
  std::uint32_t Ending(std::size_t end, std::uint32_t length) const {
    return nodes_[length - 1][kBefore + end + 1 - length];
  }

  // The same for the n-gram that ends just before it; at most order - 1 symbols.
  std::uint32_t EndingBefore(std::size_t end, std::uint32_t length) const {
    return nodes_[length - 1][kBefore + end - length];
  }

 private:
  static constexpr std::size_t kBefore = kMaxOrder - 1;  // starts kept from the block before

  struct Run {
    std::uint32_t start;  // in the block
    std::uint32_t begin;  // the children of the n-gram there
    std::uint32_t end;
  };

  std::size_t OpenRuns(int level, std::size_t count, std::size_t limit);
  void SearchRuns(int level, Span<Symbol> symbols, std::size_t num_runs);

  const BackoffLm& lm_;
  std::array<std::array<std::uint32_t, kBefore + kTextBlock>, kMaxOrder> nodes_;
  std::array<Run, kTextBlock> runs_;
  std::size_t last_count_ = 0;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_TEXT_NODES_H_
