// Katz backoff with Good-Turing discounts: from counts to an n-gram LM.
//
// Katz (1987), as OpenGrm NGram estimates it; paper 001, section 4, uses it for orders 2 to 4.
#ifndef LATTICE_BPD_TRAIN_KATZ_H_
#define LATTICE_BPD_TRAIN_KATZ_H_

#include <vector>

#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/estimate_options.h"
#include "lattice_bpd/train/good_turing.h"
#include "lattice_bpd/train/ngram_counts.h"

namespace lattice_bpd {

// The counts of counts of each level, for EstimateKatz.
std::vector<CountOfCounts> CountCountsOfLevels(const CountTrie& counts);

// The LM of a count trie (used up), which is closed under prefixes and suffixes:
//
//   P(w)                                        see unigrams.h
//   P(w | h) = d_c c(h w) / C(h)                C(h) = context_count: pruned n-grams counted in
//   </s> gets what is taken off where every word with mass follows h, and backoff goes nowhere
//   bow(h)                                      see backoff_weights.h
//
// count_of_counts has an entry for each level (level 0's is used for Unseen::kUniform alone). Of
// the options it reads order, katz_k, min_counts, full_count_of_counts, threads and unseen.
Trie EstimateKatz(CountTrie counts, const std::vector<CountOfCounts>& count_of_counts,
                  const EstimateOptions& options, TrainReport* report);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_KATZ_H_
