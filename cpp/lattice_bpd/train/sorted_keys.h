// The continuation keys of a batch of sequences, bucketed by symbol and sorted: what counting in
// memory turns into a trie at once, and counting out of core into a sorted run.
#ifndef LATTICE_BPD_TRAIN_SORTED_KEYS_H_
#define LATTICE_BPD_TRAIN_SORTED_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/train/continuation_keys.h"
#include "lattice_bpd/train/radix_sort.h"

namespace lattice_bpd {

// A part is a range of symbols that one task handles alone. Memory: sizeof(Key) for each position,
// and again for the most frequent symbol's while sorting (once for each thread at worst).
template <typename Key>
class SortedKeys {
 public:
  // events: CountEvents of the same sequences. O(positions * width of the keys).
  SortedKeys(const TokenSequences& sequences, const Vocabulary& vocabulary, int order,
             int num_threads, const std::vector<std::uint64_t>& events)
      : layout_(order, vocabulary.num_symbols()) {
    MakeBuckets(sequences, vocabulary, num_threads, events);
    RunParallel(num_parts(), num_threads,
                [&](std::size_t part) { SortPart(sequences, vocabulary, part); });
  }

  const KeyLayout& layout() const { return layout_; }
  std::size_t num_parts() const { return part_begin_.size() - 1; }
  std::size_t part_begin(std::size_t part) const { return part_begin_[part]; }
  std::uint64_t num_keys() const { return bucket_begin_.back(); }
  std::uint64_t num_keys(std::size_t symbol) const {
    return bucket_begin_[symbol + 1] - bucket_begin_[symbol];
  }

  // Calls visit(key, count) for each distinct key of a symbol in rising order.
  template <typename Visit>
  void ForEachRun(std::size_t symbol, const Visit& visit) const {
    const Key* const end = keys_.get() + bucket_begin_[symbol + 1];
    for (const Key* at = keys_.get() + bucket_begin_[symbol]; at != end;) {
      const Key key = *at;
      const Key* const run = at;
      while (at != end && *at == key) ++at;
      visit(key, static_cast<std::uint64_t>(at - run));
    }
  }

 private:
  // Every symbol's occurrences have a key, but for the final </s> of each sequence and with the
  // first <s>.
  void MakeBuckets(const TokenSequences& sequences, const Vocabulary& vocabulary, int num_threads,
                   const std::vector<std::uint64_t>& events) {
    bucket_begin_.assign(events.size() + 1, 0);
    std::uint64_t sum = 0;
    for (Symbol symbol = 0; symbol < events.size(); ++symbol) {
      bucket_begin_[symbol] = sum;
      sum += events[symbol];
      if (symbol == vocabulary.bos) sum += sequences.num_begun();
      if (symbol == vocabulary.eos) sum -= sequences.num_ended();
    }
    bucket_begin_.back() = sum;
    part_begin_ = SplitByWeight(bucket_begin_, num_threads);
    keys_.reset(new Key[sum]);  // not initialized: scattering writes every key
  }

  void SortPart(const TokenSequences& sequences, const Vocabulary& vocabulary, std::size_t part) {
    const Symbol begin = static_cast<Symbol>(part_begin_[part]);
    const Symbol end = static_cast<Symbol>(part_begin_[part + 1]);
    std::vector<std::uint64_t> next(bucket_begin_.begin() + begin, bucket_begin_.begin() + end);
    ScatterKeys(sequences, vocabulary, layout_, begin, std::move(next), keys_.get());
    std::vector<Key> scratch;
    InterruptCounter interrupts;
    for (Symbol symbol = begin; symbol < end; ++symbol) {
      interrupts.Count(num_keys(symbol));
      SortKeys(keys_.get() + bucket_begin_[symbol], num_keys(symbol), layout_.width(), &scratch);
    }
  }

  const KeyLayout layout_;
  std::vector<std::uint64_t> bucket_begin_;  // by symbol, one more entry
  std::vector<std::size_t> part_begin_;      // in symbols, one more entry
  std::unique_ptr<Key[]> keys_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_SORTED_KEYS_H_
