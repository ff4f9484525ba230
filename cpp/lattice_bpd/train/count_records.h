// Where the records of a counts file come from: sequences that are sorted, or files that are
// merged.
#ifndef LATTICE_BPD_TRAIN_COUNT_RECORDS_H_
#define LATTICE_BPD_TRAIN_COUNT_RECORDS_H_

#include <cstddef>

#include "lattice_bpd/train/count_file.h"
#include "lattice_bpd/train/count_merger.h"
#include "lattice_bpd/train/token_sequences.h"

namespace lattice_bpd {

// Bytes that WriteSortedRecords takes for each key: 8 or 16.
std::size_t KeyBytes(const Vocabulary& vocabulary, int order);

// Adds a record for each different n-gram that begins in the sequences (which have been checked),
// but for what they hold back. Memory and time: sorted_keys.h.
void WriteSortedRecords(const TokenSequences& sequences, const Vocabulary& vocabulary, int order,
                        int num_threads, CountFileWriter* writer);

// Adds the records of all files, cut to `order`. Memory and time: CountMerger.
void WriteMergedRecords(const CountFiles& files, int order, CountFileWriter* writer);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_COUNT_RECORDS_H_
