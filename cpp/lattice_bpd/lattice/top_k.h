// The k best tokens of each head, straight from its logits.
//
// A threshold approximates the k-th best logit so far. Blocks of 64 logits are compared with it at
// once; the few that pass go to a buffer, which is cut back to its k best whenever it is full, and
// the threshold rises. It starts as the k-th largest of the maxima of a few dozen interleaved
// groups of the row's beginning: k logits reach it, so that nothing below it can be among the k
// best. Exact for any input; a row in rising order is the slowest.
//
// Cost: one pass over each row, at memory speed, and about 4 k insertions on a row in random
// order; log_softmax is a second pass. Threads share the rows. The same source is compiled for
// several instruction sets; the best one that the processor has runs. All of them give the same
// bits.
#ifndef LATTICE_BPD_LATTICE_TOP_K_H_
#define LATTICE_BPD_LATTICE_TOP_K_H_

#include <string>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

struct TopKOptions {
  int top_k = 16;
  bool log_softmax = false;    // scores are log probabilities over the whole row, else raw logits
  int threads = 1;             // at most so many, 0: every core; fewer where there is little to do
  bool skip_bad_rows = false;  // rows with NaN or +inf get token -1 instead of an error
};

// Row r's candidates are entries r * top_k .. (r + 1) * top_k - 1, by decreasing score, equal
// scores by increasing token id. Masked tokens (-inf) come last, also by token id.
struct TopK {
  int top_k = 0;
  std::vector<TokenId> token_ids;
  std::vector<float> scores;
};

// Rows of any strides; those of adjacent elements are read where they are, others are gathered
// first. Throws ValueError where top_k is outside 1..columns, or a logit is NaN or +inf (the
// message names row and token; of several rows the first, whatever the number of threads).
TopK SelectTopK(const LogitsView& logits, const TopKOptions& options);

// The instruction sets that this processor and build can run, best first; "scalar" is always
// there.
std::vector<std::string> TopKInstructionSets();

// Makes SelectTopK use one of them, for tests and benchmarks; "" means the best. Throws ValueError
// for one that is not in TopKInstructionSets().
void SetTopKInstructionSet(const std::string& name);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_TOP_K_H_
