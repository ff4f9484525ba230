// From counts to an n-gram LM, whatever the smoothing.
//
//   kKatz               Good-Turing discounts, backoff (katz.h)
//   kKneserNey          continuation counts, one discount for each order, interpolated
//   kModifiedKneserNey  continuation counts, three discounts; equals KenLM's lmplz
//   kWittenBell         as many parts for the lower order as there were different words
//   kAbsolute           counts, one discount for each order, interpolated
//
// All but Katz: interpolated.h.
#ifndef LATTICE_BPD_TRAIN_ESTIMATE_H_
#define LATTICE_BPD_TRAIN_ESTIMATE_H_

#include <vector>

#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/corpus_counter.h"
#include "lattice_bpd/train/estimate_options.h"
#include "lattice_bpd/train/good_turing.h"
#include "lattice_bpd/train/ngram_counts.h"
#include "lattice_bpd/train/token_sequences.h"

namespace lattice_bpd {

// The LM of all n-grams of a corpus: `counts` (used up) is not pruned yet, min_counts does that
// here, after counts of counts and continuation counts if full_count_of_counts is set.
// Where no n-gram of the highest order is left the LM has a lower order and the report says so.
// Throws ValueError for options out of range.
// full_count_of_counts: those of the whole corpus, where min_counts was applied to `counts` before
// (not for the Kneser-Ney methods, which need every n-gram); null: `counts` has the whole corpus.
Trie EstimateLm(CountTrie counts, const EstimateOptions& options, TrainReport* report,
                const std::vector<CountOfCounts>* full_count_of_counts = nullptr);

// Counts and estimates. Throws ValueError too for sequences that CountNgrams refuses.
Trie TrainLm(const TokenSequences& sequences, const Vocabulary& vocabulary,
             const EstimateOptions& options, TrainReport* report);

// Estimates from what a counter has counted (options.order is the counter's) and empties the
// counter. min_counts are
// applied while its runs are merged where the smoothing allows, so that what they take out needs
// no memory. The LM is the same as TrainLm's of the same sequences.
// Throws ValueError where the counter's memory budget does not hold the LM (CheckTrainingMemory):
// before the counts take memory, where they were spilled.
Trie TrainLm(CorpusCounter* counter, const EstimateOptions& options, TrainReport* report);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_ESTIMATE_H_
