// The memory that training takes after counting: the counts as a trie, and estimation on them.
#ifndef LATTICE_BPD_TRAIN_TRAINING_MEMORY_H_
#define LATTICE_BPD_TRAIN_TRAINING_MEMORY_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/train/estimate_options.h"

namespace lattice_bpd {

// Bytes of a CountTrie with so many n-grams of each order.
std::uint64_t CountTrieBytes(const std::vector<std::uint64_t>& num_ngrams);

// Bytes at the peak of EstimateLm and of packing its LM, the CountTrie included: an upper bound
// that the arrays of each step add up to.
std::uint64_t TrainingBytes(const std::vector<std::uint64_t>& num_ngrams,
                            const EstimateOptions& options);

// Throws ValueError, with what is needed, where TrainingBytes is above `memory`.
void CheckTrainingMemory(const std::vector<std::uint64_t>& num_ngrams,
                         const EstimateOptions& options, std::uint64_t memory);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_TRAINING_MEMORY_H_
