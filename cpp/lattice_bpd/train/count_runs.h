// Counting on many machines: runs (count_file.h) that are cut by where their n-grams begin.
//
//   machine 1   text -> sorted records -> a run for part 0, 1, 2, ..
//   machine 2   text -> sorted records -> a run for part 0, 1, 2, ..
//   part 0      its runs of all machines, merged: every count in it is final
//
// A record goes to the part of its first two symbols, so that the counts of all n-grams of order 2
// and more are complete in one part, with those of their prefixes of order 2 and more; only the
// symbols' own counts have to be added up over the parts. Two symbols and not one: no part then
// has to hold all that follows a frequent symbol.
#ifndef LATTICE_BPD_TRAIN_COUNT_RUNS_H_
#define LATTICE_BPD_TRAIN_COUNT_RUNS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lattice_bpd/train/count_merger.h"
#include "lattice_bpd/train/count_trie_builder.h"
#include "lattice_bpd/train/token_sequences.h"

namespace lattice_bpd {

// The part, 0 .. num_parts - 1, of what begins with two symbols; the same on every machine.
std::uint32_t PartOfPair(std::uint32_t first, std::uint32_t second, std::uint32_t num_parts);

// The records of some sequences as one run for each part (empty where a part gets none). The runs'
// totals say that they come from 0 sequences: which part should say it? The caller adds them up.
// Memory and time: sorted_keys.h, and the runs twice. Throws ValueError as CheckSequences does.
std::vector<std::string> CountIntoRuns(const TokenSequences& sequences,
                                       const Vocabulary& vocabulary, int order,
                                       std::uint32_t num_parts, int num_threads);

// Runs as files. Throws FormatError for what is no run, cut or altered.
CountFiles OpenRuns(std::vector<std::string> runs);

// The sum of runs as a run.
std::string MergeRuns(const CountFiles& files);

// What a part adds to the numbers that every part needs.
struct PartSummary {
  std::vector<CountOfCounts> count_of_counts;  // by level, before min_counts; [0] is not used
  std::vector<std::uint64_t> count;            // of each symbol: where a record begins with it
  std::vector<std::uint64_t> context_count;    // of each symbol; empty for order 1
  std::vector<std::uint64_t> num_after;        // stored n-grams whose last but one symbol it is
};
PartSummary SummarizePart(const CountedNgrams& part);

// C(h) of each n-gram hw of a level (1 or more).
std::vector<std::uint64_t> ContextCountsOf(const CountTrie& trie, int level);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_COUNT_RUNS_H_
