// Where a text repeats itself, a tree of drafts goes on as the text went on before.
//
// A lattice ends at the last slot, and a loop does not. The longest suffix of a text that stood in
// it before is its match; what followed there is a draft, behind the text as well as behind nodes
// of the last slot. Each token of it is right with the rate at which texts went on like that behind
// a match of this length so far, which every token of prompt and output teaches. So its nodes have
// probabilities, and compete with those of the lattice for the same budget.
#ifndef LATTICE_BPD_DECODE_REPEATS_H_
#define LATTICE_BPD_DECODE_REPEATS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lattice_bpd/decode/suffix_index.h"
#include "lattice_bpd/verify/prefix_tree.h"

namespace lattice_bpd {

constexpr std::size_t kLongestMatch = 8;  // tokens; longer matches seldom tell more

// How often the token behind matches of one length was what followed the match before; old ones
// fade by 1 % each time.
struct RepeatRate {
  double right = 0.0;
  double tried = 0.0;

  double log() const;  // ln of (right + 1) / (tried + 2)
};

class RepeatingText {
 public:
  RepeatingText() : index_(kLongestMatch) {}

  void Append(Span<std::int64_t> tokens);

  // The max_nodes most probable nodes of a tree behind the text and of what it may go on with, none
  // deeper than `room`; nothing where it has nothing to go on with that is worth its place. The
  // tree's first node is the text's last token, its nodes stand by falling probability, and
  // those of depth `num_slots` are of the last slot. Throws ValueError where a log probability is
  // not known.
  std::optional<PrefixTree> Extend(const PrefixTree& tree, std::int32_t num_slots,
                                   std::int32_t room, std::size_t max_nodes) const;

  const SuffixIndex& index() const { return index_; }
  const std::array<RepeatRate, kLongestMatch + 1>& rates() const { return rates_; }

 private:
  SuffixIndex index_;
  std::array<RepeatRate, kLongestMatch + 1> rates_;  // behind matches of 0, 1, .. tokens
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DECODE_REPEATS_H_
