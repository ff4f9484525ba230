#include "lattice_bpd/train/count_records.h"

#include <cstdint>
#include <vector>

#include "lattice_bpd/train/sorted_keys.h"

namespace lattice_bpd {
namespace {

template <typename Key>
void WriteKeys(const SortedKeys<Key>& keys, const Vocabulary& vocabulary, CountFileWriter* writer) {
  for (Symbol symbol = 0; symbol < vocabulary.num_symbols(); ++symbol) {
    keys.ForEachRun(symbol,
                    [&](Key key, std::uint64_t count) { writer->Add({symbol, count, key}); });
  }
}

}  // namespace

std::size_t KeyBytes(const Vocabulary& vocabulary, int order) {
  const bool narrow = KeyLayout(order, vocabulary.num_symbols()).width() <= 64;
  return narrow ? sizeof(Key64) : sizeof(Key128);
}

void WriteSortedRecords(const TokenSequences& sequences, const Vocabulary& vocabulary, int order,
                        int num_threads, CountFileWriter* writer) {
  const std::vector<std::uint64_t> events = CountEvents(sequences, vocabulary);
  if (KeyBytes(vocabulary, order) == sizeof(Key64)) {
    WriteKeys(SortedKeys<Key64>(sequences, vocabulary, order, num_threads, events), vocabulary,
              writer);
  } else {
    WriteKeys(SortedKeys<Key128>(sequences, vocabulary, order, num_threads, events), vocabulary,
              writer);
  }
}

void WriteMergedRecords(const CountFiles& files, int order, CountFileWriter* writer) {
  const std::uint32_t num_symbols = files[0]->vocabulary().num_symbols();
  CountMerger merger(files, order, {0, num_symbols});
  CountRecord record;
  while (merger.Next(&record)) writer->Add(record);
}

}  // namespace lattice_bpd
