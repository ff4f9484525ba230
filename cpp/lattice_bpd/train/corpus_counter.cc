#include "lattice_bpd/train/corpus_counter.h"

#include <algorithm>
#include <utility>

#include "lattice_bpd/base/atomic_file.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/base/temporary_file.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/train/count_records.h"
#include "lattice_bpd/train/disk_full.h"
#include "lattice_bpd/train/training_memory.h"

namespace lattice_bpd {
namespace {

constexpr std::uint64_t kSmallestBuffer = 1 << 16;
constexpr std::uint64_t kBytesForEachSymbol = 32;  // events, buckets and their ends
constexpr std::uint64_t kMaxTotal = std::uint64_t{1} << 62;

CountTotals TotalsOf(const CountFiles& files) {
  CountTotals sum;
  for (const auto& file : files) {
    sum.num_sequences += file->totals().num_sequences;
    sum.num_keys += file->totals().num_keys;
  }
  return sum;
}

std::vector<std::uint64_t> SizesOf(const CountTrie& trie) {
  std::vector<std::uint64_t> sizes;
  for (const CountLevel& level : trie.levels) sizes.push_back(level.size());
  return sizes;
}

}  // namespace

CorpusCounter::CorpusCounter(const Vocabulary& vocabulary, const CountingOptions& options)
    : vocabulary_(vocabulary), options_(options), begin_{0} {
  CheckOrder(options_.order);
  options_.threads = ResolveThreads(options_.threads);
  if (options_.temporary_folder.empty()) options_.temporary_folder = DefaultTemporaryFolder();
  const std::uint64_t fixed = kBytesForEachSymbol * vocabulary_.num_symbols();
  if (options_.memory < fixed + kSmallestBuffer) {
    throw ValueError(StrCat("n-gram counting: memory is ", options_.memory, " bytes; counting ",
                            vocabulary_.num_symbols(), " symbols needs at least ",
                            fixed + kSmallestBuffer));
  }
  buffer_limit_ = options_.memory - fixed;
  key_bytes_ = KeyBytes(vocabulary_, options_.order);
  block_bytes_ = std::clamp<std::uint64_t>(options_.memory / 256, 1 << 10, 1 << 16);
  const std::uint64_t threads = static_cast<std::uint64_t>(options_.threads);
  max_runs_ = std::clamp<std::uint64_t>(options_.memory / (4 * block_bytes_ * threads), 4, 64);
}

void CorpusCounter::Add(const TokenSequences& batch) {
  CheckSequences(batch, vocabulary_);
  if (batch.continues && !open_) {
    throw ValueError(
        "n-gram counting: the batch continues a sequence, but the batch before left none open; "
        "expected continues only after held_back");
  }
  if (!batch.continues) EndOpenSequence();
  if (ids_.capacity() == 0) ids_.reserve(TokensThatFit());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    open_ = true;
    Append(batch.token_ids.Slice(static_cast<std::size_t>(batch.offsets[i]),
                                 static_cast<std::size_t>(batch.offsets[i + 1])));
    if (batch.ends(i)) EndSequence();
  }
  AddTotals({batch.num_ended(), batch.token_ids.size() + batch.num_begun()});
}

void CorpusCounter::AddFile(std::shared_ptr<const CountFile> file) {
  const Vocabulary& other = file->vocabulary();
  const bool same = other.vocab_size == vocabulary_.vocab_size && other.bos == vocabulary_.bos &&
                    other.eos == vocabulary_.eos && other.unk == vocabulary_.unk;
  if (!same) {
    throw ValueError(StrCat(file->name(), ": its vocabulary is of size ", other.vocab_size,
                            " with symbols <s> ", other.bos, ", </s> ", other.eos, ", <unk> ",
                            other.unk, "; expected ", vocabulary_.vocab_size, " with ",
                            vocabulary_.bos, ", ", vocabulary_.eos, ", ", vocabulary_.unk,
                            ": count with the same tokenizer, bos_id, eos_id and unk_id"));
  }
  if (file->order() < options_.order) {
    throw ValueError(StrCat(file->name(), ": it has counts of orders up to ", file->order(),
                            "; expected at least ", options_.order, ": use a lower order, or ",
                            "count again"));
  }
  AddTotals(file->totals());
  runs_.push_back({std::move(file), 0});
  MergeManyRuns();
}

CountedNgrams CorpusCounter::Finish(const std::vector<std::uint64_t>& min_counts,
                                    const CheckSizes& check_sizes) {
  EndOpenSequence();
  if (runs_.empty() && FitsInMemory()) {
    CountedNgrams result;
    const TokenSequences sequences{ids_, begin_, /*continues=*/false, /*held_back=*/0};
    result.trie = CountNgrams(sequences, vocabulary_, options_.order, options_.threads);
    for (const CountLevel& level : result.trie.levels) {
      result.count_of_counts.push_back(CountCounts(level));
    }
    if (check_sizes) {
      Clear();
      check_sizes(SizesOf(result.trie));
    }
    return result;
  }
  SpillBuffer();
  FreeMemory(&ids_);
  CountFiles files;
  for (const Run& run : runs_) files.push_back(run.file);
  if (check_sizes) Clear();
  return BuildCountTrie(files, {options_.order, min_counts, options_.threads, check_sizes});
}

void CorpusCounter::Save(const std::string& path, const std::string& sources) {
  EndOpenSequence();
  if (!runs_.empty()) SpillBuffer();
  CountFiles files;
  for (const Run& run : runs_) files.push_back(run.file);
  AtomicFile file(path);
  CountFileWriter writer =
      MakeWriter([&](const void* data, std::size_t size) { file.Write(data, size); });
  ExplainFullDisk(path, writer, totals_.num_keys, [&] {
    if (files.empty()) {
      WriteBuffer({ids_, begin_, /*continues=*/false, /*held_back=*/0}, &writer);
    } else {
      WriteMergedRecords(files, options_.order, &writer);
    }
    writer.Finish(totals_.num_sequences, sources);
    file.Commit();
  });
  ids_.clear();
  begin_ = {0};
  runs_ = {{std::make_shared<const CountFile>(FileReader::Open(path)), 0}};
}

CountingProgress CorpusCounter::progress() const {
  CountingProgress progress{totals_, runs_.size(), 0};
  for (const Run& run : runs_) progress.spilled_bytes += run.file->size();
  return progress;
}

// What sorting the buffer will take: ids and begins, keys, and as much again to sort them.
std::uint64_t CorpusCounter::buffered_bytes() const {
  return ids_.size() * (sizeof(TokenId) + 2 * key_bytes_) +
         begin_.size() * (sizeof(std::int64_t) + 2 * key_bytes_);
}

std::size_t CorpusCounter::TokensThatFit() const {
  const std::uint64_t bytes = buffered_bytes();
  if (bytes >= buffer_limit_) return 0;
  return (buffer_limit_ - bytes) / (sizeof(TokenId) + 2 * key_bytes_);
}

// Whether the sorted keys of the buffer and a trie of them fit, were all n-grams different.
bool CorpusCounter::FitsInMemory() const {
  const std::uint64_t tokens = ids_.size() + begin_.size();
  std::vector<std::uint64_t> most(static_cast<std::size_t>(options_.order), tokens);
  most[0] = vocabulary_.num_symbols();
  return tokens == 0 || buffered_bytes() + CountTrieBytes(most) <= options_.memory;
}

void CorpusCounter::Append(Span<TokenId> ids) {
  while (!ids.empty()) {
    if (TokensThatFit() == 0) SpillBuffer();
    const std::size_t taken = std::min(ids.size(), TokensThatFit());
    ids_.insert(ids_.end(), ids.begin(), ids.begin() + taken);
    ids = ids.Slice(taken, ids.size());
  }
}

void CorpusCounter::EndSequence() {
  begin_.push_back(static_cast<std::int64_t>(ids_.size()));
  open_ = false;
  if (TokensThatFit() == 0) SpillBuffer();
}

void CorpusCounter::EndOpenSequence() {
  if (!open_) return;
  EndSequence();
  AddTotals({1, 0});
}

void CorpusCounter::SpillBuffer() {
  const std::size_t overlap = std::max(options_.order - 1, 1);
  const std::size_t open_size = ids_.size() - static_cast<std::size_t>(begin_.back());
  const bool cut = open_ && open_size > overlap;
  if (cut) begin_.push_back(static_cast<std::int64_t>(ids_.size()));
  if (begin_.size() > 1) {
    const Span<TokenId> ids(ids_.data(), static_cast<std::size_t>(begin_.back()));
    const TokenSequences sequences{ids, begin_, continues_, cut ? overlap : 0};
    const CountTotals totals{sequences.num_ended(), ids.size() + sequences.num_begun()};
    runs_.push_back(
        {WriteRun(totals, [&](CountFileWriter* writer) { WriteBuffer(sequences, writer); }), 0});
    continues_ = cut;
  }
  const std::size_t kept = cut ? overlap : open_ ? open_size : 0;
  ids_.erase(ids_.begin(), ids_.end() - static_cast<std::ptrdiff_t>(kept));
  begin_ = {0};
  MergeManyRuns();
}

void CorpusCounter::MergeManyRuns() {
  for (int level = 0;; ++level) {
    const auto of_level = [&](const Run& run) { return run.level == level; };
    if (std::count_if(runs_.begin(), runs_.end(), of_level) <
        static_cast<std::ptrdiff_t>(max_runs_)) {
      return;
    }
    CountFiles files;
    for (const Run& run : runs_) {
      if (of_level(run)) files.push_back(run.file);
    }
    auto merged = WriteRun(TotalsOf(files), [&](CountFileWriter* writer) {
      WriteMergedRecords(files, options_.order, writer);
    });
    runs_.erase(std::remove_if(runs_.begin(), runs_.end(), of_level), runs_.end());
    runs_.push_back({std::move(merged), level + 1});
  }
}

void CorpusCounter::Clear() {
  FreeMemory(&ids_);
  begin_ = {0};
  runs_ = {};
  totals_ = {};
}

void CorpusCounter::AddTotals(const CountTotals& totals) {
  totals_.num_sequences += totals.num_sequences;
  totals_.num_keys += totals.num_keys;
  if (totals.num_keys < kMaxTotal && totals_.num_keys < kMaxTotal) return;
  throw ValueError(StrCat("n-gram counting: ", totals_.num_keys,
                          " tokens in all; at most 2^62 can be counted: merge fewer files"));
}

void CorpusCounter::WriteBuffer(const TokenSequences& sequences, CountFileWriter* writer) const {
  WriteSortedRecords(sequences, vocabulary_, options_.order, options_.threads, writer);
}

std::shared_ptr<const CountFile> CorpusCounter::WriteRun(
    const CountTotals& totals, const std::function<void(CountFileWriter*)>& write) const {
  TemporaryFile file(options_.temporary_folder);
  CountFileWriter writer =
      MakeWriter([&](const void* data, std::size_t size) { file.Write(data, size); });
  ExplainFullDisk(options_.temporary_folder, writer, totals.num_keys, [&] {
    write(&writer);
    writer.Finish(totals.num_sequences, "");
  });
  return std::make_shared<const CountFile>(file.Finish());
}

CountFileWriter CorpusCounter::MakeWriter(CountFileWriter::Sink sink) const {
  return {vocabulary_, options_.order, block_bytes_,
          [sink = std::move(sink)](const void* data, std::size_t size) {
            CheckInterrupted();
            sink(data, size);
          }};
}

}  // namespace lattice_bpd
