// Evaluation of an LM on a text: log probability and hits of each order.
#ifndef LATTICE_BPD_TRAIN_EVALUATE_LM_H_
#define LATTICE_BPD_TRAIN_EVALUATE_LM_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/train/token_sequences.h"

namespace lattice_bpd {

// Perplexity is exp(-log_prob / (tokens - unknown)).
struct TextScore {
  std::uint64_t tokens = 0;         // events: every token, and </s> where it is scored
  std::uint64_t unknown = 0;        // tokens without a probability of their own: not in log_prob
  double log_prob = 0.0;            // sum of ln P of all others
  std::vector<std::uint64_t> hits;  // [n - 1]: how many of those an n-gram predicted

  void Add(const TextScore& other);
};

// Each sequence is read as <s> w1 .. wm </s>, or without its ends where bos or eos is false. One
// pass; the result does not depend on num_threads. Throws ValueError for bad sequences
// (CountEvents).
TextScore EvaluateLm(const BackoffLm& lm, const TokenSequences& sequences, bool bos, bool eos,
                     int num_threads);

// P of each event of the sequences, </s> among them; 0 for unknown tokens.
std::vector<double> ProbsOfText(const BackoffLm& lm, const TokenSequences& sequences,
                                int num_threads);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_EVALUATE_LM_H_
