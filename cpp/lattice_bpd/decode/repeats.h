// Extends draft trees where a text repeats itself (prompt lookup with calibrated probabilities).
//
// A lattice ends at the last slot, a repetition does not. The longest suffix of a text that
// occurred earlier is its match; what followed it there is a draft, after the text and after nodes
// of the last slot. The probability of each such token is the rate at which matches of this length
// predicted the next token so far, over prompt and output. So its nodes compete with those of the
// lattice for the same budget.
#ifndef LATTICE_BPD_DECODE_REPEATS_H_
#define LATTICE_BPD_DECODE_REPEATS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lattice_bpd/decode/suffix_index.h"
#include "lattice_bpd/verify/prefix_tree.h"

namespace lattice_bpd {

constexpr std::size_t kLongestMatch = 8;  // tokens; longer matches rarely predict better

// How often matches of one length predicted the next token; decays by 1 % each time.
struct RepeatRate {
  double correct = 0.0;
  double total = 0.0;

  double log() const;  // ln of (correct + 1) / (total + 2)
};

class RepeatingText {
 public:
  RepeatingText() : index_(kLongestMatch) {}

  void Append(Span<std::int64_t> tokens);

  // The max_nodes most probable nodes of a draft tree and of its continuations by repetition, none
  // deeper than `max_depth`; nothing where continuations add less than 0.1 expected tokens. The
  // tree's first node is the text's last token, its nodes are ordered by decreasing probability,
  // and those of depth `num_slots` are of the last slot. Throws ValueError where a log probability
  // is not known.
  std::optional<PrefixTree> Extend(const PrefixTree& tree, std::int32_t num_slots,
                                   std::int32_t max_depth, std::size_t max_nodes) const;

  const SuffixIndex& index() const { return index_; }
  const std::array<RepeatRate, kLongestMatch + 1>& rates() const { return rates_; }

 private:
  SuffixIndex index_;
  std::array<RepeatRate, kLongestMatch + 1> rates_;  // after matches of 0, 1, .. tokens
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DECODE_REPEATS_H_
