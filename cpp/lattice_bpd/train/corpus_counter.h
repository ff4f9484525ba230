// Counts a corpus of any size within a memory budget.
//
//   CorpusCounter counter(vocabulary, options);
//   for (each batch) counter.Add(batch);
//   CountedNgrams counts = counter.Finish(min_counts);   and / or   counter.Save(path);
//
// Batches are gathered until their sorting would fill the budget, then sorted and written to a
// temporary file without a name: a run (count_file.h). Runs are merged at the end; where
// they become many, those of one size are merged early, so that few files are open at once. Saved
// counts are such a run too, which a later count continues. The result is bit for bit what
// CountNgrams makes of all the sequences, whatever the batches, budget, threads and their order.
#ifndef LATTICE_BPD_TRAIN_CORPUS_COUNTER_H_
#define LATTICE_BPD_TRAIN_CORPUS_COUNTER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lattice_bpd/train/count_trie_builder.h"
#include "lattice_bpd/train/token_sequences.h"

namespace lattice_bpd {

struct CountingOptions {
  int order = 4;
  std::uint64_t memory = std::uint64_t{1} << 31;  // bytes, for counting and then for training
  std::string temporary_folder;                   // empty: DefaultTemporaryFolder()
  int threads = 0;                                // 0: every core
};

struct CountingProgress {
  CountTotals totals;               // of all that was added
  std::uint64_t num_runs = 0;       // on disk now
  std::uint64_t spilled_bytes = 0;  // on disk now
};

// After an exception only destruction is allowed; no temporary file is left in any case. Every call
// checks for interrupts (base/interrupts.h).
class CorpusCounter {
 public:
  // Throws ValueError where order is not in 1..6, or memory is too small for the vocabulary.
  CorpusCounter(const Vocabulary& vocabulary, const CountingOptions& options);

  // Adds sequences. The batch's `continues` must say whether the batch before left its last
  // sequence open, which `held_back` above 0 does (its value is not used: the counter repeats
  // what it must itself). Amortised O(1) for each token, but a call may sort and write the budget.
  // Throws ValueError (CheckSequences), and IoError where the run cannot be written: for a full
  // disk the message has the bytes written and about how many are needed.
  void Add(const TokenSequences& batch);

  // Adds what a counts file holds. Throws ValueError where its vocabulary is another, or its order
  // is lower than the counter's.
  void AddFile(std::shared_ptr<const CountFile> file);

  // The counts as a trie (CountTrieOptions says what min_counts and check_sizes do), which is made
  // in memory only where keys and trie fit the budget together. An open sequence is ended. With
  // check_sizes the counter is empty afterwards: what comes next has the memory for itself.
  CountedNgrams Finish(const std::vector<std::uint64_t>& min_counts,
                       const CheckSizes& check_sizes = {});

  // Writes a counts file; what was at `path` stays until that is complete. Counting may continue,
  // from the written file instead of the runs before it. An open sequence is ended.
  void Save(const std::string& path, const std::string& sources);

  CountingProgress progress() const;
  int order() const { return options_.order; }
  std::uint64_t memory() const { return options_.memory; }
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Run {
    std::shared_ptr<const CountFile> file;
    int level = 0;  // how many merges deep
  };

  std::uint64_t buffered_bytes() const;
  std::size_t TokensThatFit() const;
  bool FitsInMemory() const;
  void Append(Span<TokenId> ids);
  void EndSequence();
  void EndOpenSequence();
  void SpillBuffer();
  void MergeManyRuns();
  void Clear();
  void AddTotals(const CountTotals& totals);

  // Writes what the buffer holds, up to the last sequence's held_back tokens.
  void WriteBuffer(const TokenSequences& sequences, CountFileWriter* writer) const;

  // Runs write(writer) on a new temporary file, which will hold about num_keys keys.
  std::shared_ptr<const CountFile> WriteRun(
      const CountTotals& totals, const std::function<void(CountFileWriter*)>& write) const;
  CountFileWriter MakeWriter(CountFileWriter::Sink sink) const;

  const Vocabulary vocabulary_;
  CountingOptions options_;
  std::size_t key_bytes_ = 0;
  std::size_t block_bytes_ = 0;
  std::size_t max_runs_ = 0;         // of one level
  std::uint64_t buffer_limit_ = 0;   // bytes
  std::vector<TokenId> ids_;         // sequences, concatenated
  std::vector<std::int64_t> begin_;  // of each buffered sequence, and of the open one or the next
  bool continues_ = false;           // the first buffered sequence began before
  bool open_ = false;                // the last one continues
  std::vector<Run> runs_;
  CountTotals totals_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_CORPUS_COUNTER_H_
