// Katz backoff with Good-Turing discounts: from counts to an n-gram LM.
//
// Katz (1987), as OpenGrm NGram estimates it; paper 001, section 4, uses it for orders 2 to 4.
#ifndef LATTICE_BPD_TRAIN_KATZ_H_
#define LATTICE_BPD_TRAIN_KATZ_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/good_turing.h"
#include "lattice_bpd/train/ngram_counts.h"
#include "lattice_bpd/train/token_sequences.h"

namespace lattice_bpd {

struct KatzOptions {
  int order = 4;
  int katz_k = 5;                         // counts 1 .. katz_k are discounted; 1..32
  std::vector<std::uint64_t> min_counts;  // one for each order; empty: every n-gram stays

  // Take Good-Turing's counts of counts from all n-grams of the corpus, or from those that
  // min_counts leaves. All is right: n_1 and n_2 are statistics of the language, and cutting
  // them off leaves n_r = 0 just where the discounts need them. The other is what a toolkit that
  // prunes counts first and estimates later gets.
  bool full_count_of_counts = true;

  int threads = 0;  // 0: every core
};

// What a user should hear about: one line each, which names the order and the numbers.
struct TrainReport {
  std::vector<std::string> warnings;
};

// Counts, prunes by min_counts and estimates. Where the corpus (or min_counts) leaves no n-gram
// of the highest order, the LM has a lower order and the report says so.
// Throws ValueError for options or sequences that CountNgrams, PruneByCount or CheckKatzK refuse.
Trie TrainKatz(const TokenSequences& sequences, const Vocabulary& vocabulary,
               const KatzOptions& options, TrainReport* report);

// The counts of counts of each level, for EstimateKatz.
std::vector<CountOfCounts> CountCountsOfLevels(const CountTrie& counts);

// The LM of a count trie (used up), which is closed under prefixes and suffixes:
//
//   P(w)     = c(w) / sum of c                  for seen w and </s>: no discount
//            = exp(-1000)                       for token ids never seen, and <unk>
//   P(w | h) = d_c c(h w) / C(h)                C(h) = context_count: pruned n-grams counted in
//   </s> gets what is taken off where every word with mass follows h, and backoff goes nowhere
//   bow(h)                                      see backoff_weights.h
//
// count_of_counts has an entry for each level (level 0's is not used).
Trie EstimateKatz(CountTrie counts, const std::vector<CountOfCounts>& count_of_counts,
                  const KatzOptions& options, TrainReport* report);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_KATZ_H_
