#include "lattice_bpd/train/count_runs.h"

#include <memory>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/train/count_records.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kBlockBytes = 1 << 16;

// A run that is written into a string.
class RunWriter {
 public:
  RunWriter(const Vocabulary& vocabulary, int order)
      : writer_(vocabulary, order, kBlockBytes, [this](const void* data, std::size_t size) {
          bytes_.append(static_cast<const char*>(data), size);
        }) {}
  RunWriter(const RunWriter&) = delete;
  RunWriter& operator=(const RunWriter&) = delete;

  CountFileWriter* writer() { return &writer_; }

  std::string Finish() {
    writer_.Finish(/*num_sequences=*/0, /*sources=*/"");
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
  CountFileWriter writer_;
};

std::string SortedRun(const TokenSequences& sequences, const Vocabulary& vocabulary, int order,
                      int num_threads) {
  RunWriter run(vocabulary, order);
  WriteSortedRecords(sequences, vocabulary, order, num_threads, run.writer());
  return run.Finish();
}

}  // namespace

std::uint32_t PartOfPair(std::uint32_t first, std::uint32_t second, std::uint32_t num_parts) {
  std::uint64_t mixed = (std::uint64_t{first} << 32 | second) * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93u;  // odd constants spread low bits upwards
  return static_cast<std::uint32_t>((mixed >> 32) % num_parts);
}

std::vector<std::string> CountIntoRuns(const TokenSequences& sequences,
                                       const Vocabulary& vocabulary, int order,
                                       std::uint32_t num_parts, int num_threads) {
  CheckOrder(order);
  CheckSequences(sequences, vocabulary);
  const int threads = ResolveThreads(num_threads);
  const CountFiles all = OpenRuns({SortedRun(sequences, vocabulary, order, threads)});
  const KeyLayout layout(order, vocabulary.num_symbols());
  std::vector<std::unique_ptr<RunWriter>> writers(num_parts);
  CountMerger records(all, order, {0, vocabulary.num_symbols()});
  CountRecord record;
  while (records.Next(&record)) {
    const std::uint32_t second = order > 1 ? layout.SymbolPlusOne(record.key, 0) : 0;
    std::unique_ptr<RunWriter>& writer = writers[PartOfPair(record.symbol, second, num_parts)];
    if (!writer) writer = std::make_unique<RunWriter>(vocabulary, order);
    writer->writer()->Add(record);
  }
  std::vector<std::string> runs(num_parts);
  for (std::uint32_t part = 0; part < num_parts; ++part) {
    if (writers[part]) runs[part] = writers[part]->Finish();
    writers[part].reset();
  }
  return runs;
}

CountFiles OpenRuns(std::vector<std::string> runs) {
  CountFiles files;
  for (std::string& run : runs) {
    const std::string name = StrCat("run ", files.size(), " of a partition");
    auto reader = FileReader::FromBytes(std::move(run), name);
    files.push_back(std::make_shared<const CountFile>(std::move(reader)));
  }
  return files;
}

std::string MergeRuns(const CountFiles& files) {
  if (files.empty()) throw ValueError("n-gram counting: no runs to merge; expected at least one");
  RunWriter run(files[0]->vocabulary(), files[0]->order());
  WriteMergedRecords(files, files[0]->order(), run.writer());
  return run.Finish();
}

PartSummary SummarizePart(const CountedNgrams& part) {
  const CountTrie& trie = part.trie;
  PartSummary summary{part.count_of_counts, trie.levels[0].count, trie.levels[0].context_count, {}};
  summary.num_after.resize(trie.vocabulary.num_symbols());
  for (int m = 1; m < trie.order(); ++m) {
    const std::vector<std::uint32_t>& begin = trie.levels[m - 1].child_begin;
    for (std::size_t context = 0; context + 1 < begin.size(); ++context) {
      const Symbol last = m == 1 ? static_cast<Symbol>(context) : trie.levels[m - 1].word[context];
      summary.num_after[last] += begin[context + 1] - begin[context];
    }
  }
  return summary;
}

std::vector<std::uint64_t> ContextCountsOf(const CountTrie& trie, int level) {
  const CountLevel& contexts = trie.levels[level - 1];
  std::vector<std::uint64_t> counts;
  counts.reserve(trie.levels[level].size());
  for (std::size_t context = 0; context < contexts.size(); ++context) {
    counts.resize(contexts.child_begin[context + 1], contexts.context_count[context]);
  }
  return counts;
}

}  // namespace lattice_bpd
