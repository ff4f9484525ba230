// Unigram probabilities, including those of symbols that do not occur in the text.
#ifndef LATTICE_BPD_TRAIN_UNIGRAMS_H_
#define LATTICE_BPD_TRAIN_UNIGRAMS_H_

#include <cstdint>

#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/discounts.h"
#include "lattice_bpd/train/estimate_options.h"
#include "lattice_bpd/train/ngram_counts.h"

namespace lattice_bpd {

// How many symbols EstimateUnigrams gives a probability above 0.
std::uint64_t CountUnigramEvents(const Vocabulary& vocabulary, const CountLevel& unigrams,
                                 Unseen unseen);

// Level 0 of the LM, without backoff weights; N = sum of c(w).
//
//   Unseen::kCost      P(w) = c(w) / N              seen words and </s>
//                      P(w) = exp(-1000)            the rest: unseen token ids, <unk>
//   Unseen::kUniform   P(w) = (c(w) - D) / N + (D T / N) / E
//
// with T the number of seen symbols, E that of all events: every token id, </s> and <unk>, but
// not <s> unless the text has it as a token. D = OneDiscount of the unigrams' counts of counts:
// absolute discounting whose mass goes to the uniform distribution, so that sums stay 1.
//
// Smoothing::kModifiedKneserNey has ThreeDiscounts, and for kCost it interpolates too, with
// E = T: lmplz's unigrams are those of kUniform where every token id was seen.
// `counts` are continuation counts for the Kneser-Ney methods. child_begin is moved to the result.
TrieLevel EstimateUnigrams(const Vocabulary& vocabulary, CountLevel counts,
                           const CountOfCounts& count_of_counts, const EstimateOptions& options,
                           TrainReport* report);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_UNIGRAMS_H_
