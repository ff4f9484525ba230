#include "lattice_bpd/train/ngram_counts.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/continuation_keys.h"
#include "lattice_bpd/train/sorted_keys.h"

namespace lattice_bpd {
namespace {

// Nodes of each level, level 0 not used.
using LevelSizes = std::array<std::uint64_t, kMaxOrder>;

// Turns the sorted keys of a corpus into a trie, part by part.
template <typename Key>
class KeyedCounter {
 public:
  KeyedCounter(const TokenSequences& sequences, const Vocabulary& vocabulary, int order,
               int num_threads, const std::vector<std::uint64_t>& events)
      : vocabulary_(vocabulary),
        num_threads_(num_threads),
        keys_(sequences, vocabulary, order, num_threads, events),
        layout_(keys_.layout()) {}

  CountTrie Count(std::vector<std::uint64_t> events) {
    std::vector<LevelSizes> part_sizes(keys_.num_parts());
    RunParallel(keys_.num_parts(), num_threads_,
                [&](std::size_t part) { part_sizes[part] = CountNodes(part); });
    CountTrie trie = MakeLevels(std::move(events), &part_sizes);
    RunParallel(keys_.num_parts(), num_threads_,
                [&](std::size_t part) { FillNodes(part, part_sizes[part], &trie); });
    return trie;
  }

 private:
  LevelSizes CountNodes(std::size_t part) const {
    LevelSizes sizes{};
    for (std::size_t symbol = keys_.part_begin(part); symbol < keys_.part_begin(part + 1);
         ++symbol) {
      ForEachRun(symbol, [&](Key, std::uint64_t, int shared, int length) {
        for (int position = shared; position < length; ++position) ++sizes[position + 1];
      });
    }
    return sizes;
  }

  // Calls visit(key, count, shared, length) for each distinct key of a symbol in rising order;
  // `shared` of its `length` symbols are those of the key before.
  template <typename Visit>
  void ForEachRun(std::size_t symbol, const Visit& visit) const {
    if (keys_.num_keys(symbol) > 0) CheckInterrupted();
    Key last = 0;  // no key is 0: the first symbol of each is there
    keys_.ForEachRun(symbol, [&](Key key, std::uint64_t count) {
      int length = layout_.length;
      while (layout_.SymbolPlusOne(key, length - 1) == 0) --length;
      visit(key, count, layout_.CommonPrefix(last, key), length);
      last = key;
    });
  }

  // Allocates the levels and turns each part's sizes into where its nodes begin.
  CountTrie MakeLevels(std::vector<std::uint64_t> events, std::vector<LevelSizes>* part_sizes) {
    CountTrie trie{vocabulary_, std::vector<CountLevel>(layout_.length + 1)};
    trie.levels[0].count = std::move(events);
    for (int level = 0; level <= layout_.length; ++level) {
      CountLevel& out = trie.levels[level];
      std::uint64_t size = trie.levels[0].count.size();
      if (level > 0) {
        size = TurnIntoOffsets(level, part_sizes);
        ResizeInHugePages(size, &out.word);
        out.count.resize(size);
      }
      if (level == layout_.length) break;
      out.context_count.resize(size);
      ResizeInHugePages(size + 1, &out.child_begin);
    }
    return trie;
  }

  static std::uint64_t TurnIntoOffsets(int level, std::vector<LevelSizes>* part_sizes) {
    std::uint64_t sum = 0;
    for (LevelSizes& sizes : *part_sizes) sum += std::exchange(sizes[level], sum);
    CheckLevelSize(level, sum);
    return sum;
  }

  // Writes the part's nodes from next[level] on.
  void FillNodes(std::size_t part, LevelSizes next, CountTrie* trie) const {
    std::vector<CountLevel>& levels = trie->levels;
    for (std::size_t symbol = keys_.part_begin(part); symbol < keys_.part_begin(part + 1);
         ++symbol) {
      levels[0].child_begin[symbol] = static_cast<std::uint32_t>(next[1]);
      levels[0].context_count[symbol] = keys_.num_keys(symbol);
      ForEachRun(symbol, [&](Key key, std::uint64_t count, int shared, int length) {
        for (int position = shared; position < length; ++position) {
          CountLevel& level = levels[position + 1];
          const std::uint64_t node = next[position + 1]++;
          level.word[node] = layout_.SymbolPlusOne(key, position) - 1;
          if (position + 1 < layout_.length) {
            level.child_begin[node] = static_cast<std::uint32_t>(next[position + 2]);
          }
        }
        for (int position = 0; position < length; ++position) {
          levels[position + 1].count[next[position + 1] - 1] += count;
          if (position > 0) levels[position].context_count[next[position] - 1] += count;
        }
      });
    }
    if (part + 1 == keys_.num_parts()) Close(next, &levels);
  }

  void Close(const LevelSizes& sizes, std::vector<CountLevel>* levels) const {
    for (int level = 0; level < layout_.length; ++level) {
      (*levels)[level].child_begin.back() = static_cast<std::uint32_t>(sizes[level + 1]);
    }
  }

  const Vocabulary& vocabulary_;
  const int num_threads_;
  const SortedKeys<Key> keys_;
  const KeyLayout& layout_;
};

// Appends the rows of `level` below a node of `depth`; row[0 .. depth] are the node's symbols.
void ListBelow(const CountTrie& trie, int level, int depth, std::uint32_t node,
               std::array<Symbol, kMaxOrder>* row, NgramTable* table) {
  if (depth == level) {
    if (trie.levels[level].count[node] == 0) return;
    table->symbols.insert(table->symbols.end(), row->begin(), row->begin() + level + 1);
    table->counts.push_back(trie.levels[level].count[node]);
    return;
  }
  const std::vector<std::uint32_t>& child_begin = trie.levels[depth].child_begin;
  for (std::uint32_t child = child_begin[node]; child < child_begin[node + 1]; ++child) {
    (*row)[depth + 1] = trie.levels[depth + 1].word[child];
    ListBelow(trie, level, depth + 1, child, row, table);
  }
}

CountTrie CountUnigrams(const Vocabulary& vocabulary, std::vector<std::uint64_t> events) {
  CountTrie trie{vocabulary, std::vector<CountLevel>(1)};
  trie.levels[0].count = std::move(events);
  return trie;
}

}  // namespace

CountTrie CountNgrams(const TokenSequences& sequences, const Vocabulary& vocabulary, int order,
                      int num_threads) {
  CheckOrder(order);
  const int threads = ResolveThreads(num_threads);
  std::vector<std::uint64_t> events = CheckAndCountEvents(sequences, vocabulary);
  if (order == 1) return CountUnigrams(vocabulary, std::move(events));
  if (KeyLayout(order, vocabulary.num_symbols()).width() <= 64) {
    return KeyedCounter<Key64>(sequences, vocabulary, order, threads, events)
        .Count(std::move(events));
  }
  return KeyedCounter<Key128>(sequences, vocabulary, order, threads, events)
      .Count(std::move(events));
}

void CheckOrder(int order) {
  if (order >= 1 && order <= kMaxOrder) return;
  throw ValueError(StrCat("n-gram counting: order is ", order, "; expected 1..", kMaxOrder));
}

void CheckLevelSize(int level, std::uint64_t size) {
  if (size <= std::numeric_limits<std::uint32_t>::max()) return;
  throw ValueError(StrCat("n-gram counting: the corpus has ", size, " n-grams of order ", level + 1,
                          "; at most 2^32 - 1 fit a model: raise min_counts or split the corpus"));
}

NgramTable ListNgrams(const CountTrie& trie, int level) {
  NgramTable table;
  std::array<Symbol, kMaxOrder> row{};
  for (Symbol symbol = 0; symbol < trie.levels[0].size(); ++symbol) {
    if (level == 0 && trie.levels[0].count[symbol] == 0) continue;
    row[0] = symbol;
    ListBelow(trie, level, 0, symbol, &row, &table);
  }
  return table;
}

}  // namespace lattice_bpd
