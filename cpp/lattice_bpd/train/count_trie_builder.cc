#include "lattice_bpd/train/count_trie_builder.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/count_path.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kPartsPerThread = 4;

// What the first merge learns about a range of symbols.
struct PartSizes {
  std::array<std::uint64_t, kMaxOrder> nodes{};  // of each level; level 0 not used
  std::array<CountOfCounts, kMaxOrder> count_of_counts{};
};

// For each level the smallest count that it or a level above it keeps: a prefix or suffix occurs
// at least as often as the whole, so that these rise and what they keep is closed under both.
std::array<std::uint64_t, kMaxOrder> RisingMinCounts(const CountTrieOptions& options) {
  std::array<std::uint64_t, kMaxOrder> rising;
  rising.fill(1);
  if (options.min_counts.size() != static_cast<std::size_t>(options.order)) return rising;
  std::uint64_t smallest = std::numeric_limits<std::uint64_t>::max();
  for (int level = options.order; level-- > 0;) {
    smallest = std::min(smallest, options.min_counts[level]);
    rising[level] = smallest;
  }
  return rising;
}

class CountTrieBuilder {
 public:
  CountTrieBuilder(const CountFiles& files, const CountTrieOptions& options)
      : files_(files),
        options_(options),
        layout_(options.order, files[0]->vocabulary().num_symbols()),
        min_counts_(RisingMinCounts(options)),
        ranges_(SplitSymbols(files, files[0]->vocabulary(),
                             kPartsPerThread * static_cast<std::size_t>(options.threads))),
        sizes_(ranges_.size()) {}

  CountedNgrams Build() {
    RunParallel(ranges_.size(), options_.threads, [&](std::size_t part) { Measure(part); });
    if (options_.check_sizes) options_.check_sizes(AddSizes());
    CountedNgrams result;
    result.count_of_counts = AddCountOfCounts();
    result.trie = MakeLevels();
    RunParallel(ranges_.size(), options_.threads,
                [&](std::size_t part) { Fill(part, &result.trie); });
    CloseLevels(&result.trie);
    TurnIntoEvents(&result.trie);
    result.count_of_counts[0] = CountCounts(result.trie.levels[0]);
    return result;
  }

 private:
  template <typename Path>
  void Walk(std::size_t part, Path* path) const {
    CountMerger merger(files_, options_.order, ranges_[part]);
    CountRecord record;
    InterruptCounter interrupts;
    while (merger.Next(&record)) {
      interrupts.Count();
      path->Add(record);
    }
    path->CloseAll();
  }

  void Measure(std::size_t part) {
    PartSizes& sizes = sizes_[part];
    const auto close = [&](int level, const OpenNode& node) {
      if (level == 0) return;
      if (node.count < sizes.count_of_counts[level].size())
        ++sizes.count_of_counts[level][node.count];
      if (node.count >= min_counts_[level]) ++sizes.nodes[level];
    };
    const auto open = [](int, OpenNode*) {};
    CountPath path(layout_, files_[0]->vocabulary(), open, close);
    Walk(part, &path);
  }

  std::vector<std::uint64_t> AddSizes() const {
    std::vector<std::uint64_t> sum(options_.order, 0);
    sum[0] = files_[0]->vocabulary().num_symbols();
    for (const PartSizes& sizes : sizes_) {
      for (int level = 1; level < options_.order; ++level) sum[level] += sizes.nodes[level];
    }
    return sum;
  }

  std::vector<CountOfCounts> AddCountOfCounts() const {
    std::vector<CountOfCounts> sum(options_.order, CountOfCounts{});
    for (const PartSizes& sizes : sizes_) {
      for (int level = 0; level < options_.order; ++level) {
        for (std::size_t r = 0; r < sum[level].size(); ++r) {
          sum[level][r] += sizes.count_of_counts[level][r];
        }
      }
    }
    return sum;
  }

  // Allocates the levels and turns each part's sizes into where its nodes begin.
  CountTrie MakeLevels() {
    CountTrie trie{files_[0]->vocabulary(), std::vector<CountLevel>(options_.order)};
    for (int level = 0; level < options_.order; ++level) {
      CountLevel& out = trie.levels[level];
      const std::uint64_t size =
          level == 0 ? trie.vocabulary.num_symbols() : TurnIntoOffsets(level);
      out.count.resize(size);
      if (level > 0) ResizeInHugePages(size, &out.word);
      if (level + 1 == options_.order) break;
      out.context_count.resize(size);
      ResizeInHugePages(size + 1, &out.child_begin);
    }
    return trie;
  }

  std::uint64_t TurnIntoOffsets(int level) {
    std::uint64_t sum = 0;
    for (PartSizes& sizes : sizes_) sum += std::exchange(sizes.nodes[level], sum);
    CheckLevelSize(level, sum);
    return sum;
  }

  void Fill(std::size_t part, CountTrie* trie) const {
    std::array<std::uint64_t, kMaxOrder> next = sizes_[part].nodes;
    Symbol unvisited = ranges_[part].begin;
    const auto open = [&](int level, OpenNode* node) {
      if (level + 1 < options_.order)
        node->first_child = static_cast<std::uint32_t>(next[level + 1]);
    };
    const auto close = [&](int level, const OpenNode& node) {
      if (level > 0 && node.count < min_counts_[level]) return;
      if (level == 0) {  // symbols that nothing follows have no children
        SkipTo(node.word, node.first_child, &unvisited, &trie->levels[0]);
        unvisited = node.word + 1;
      }
      StoreNode(level, level == 0 ? node.word : next[level]++, node, &trie->levels[level]);
    };
    CountPath path(layout_, trie->vocabulary, open, close);
    Walk(part, &path);
    SkipTo(ranges_[part].end, static_cast<std::uint32_t>(next[1]), &unvisited, &trie->levels[0]);
  }

  void SkipTo(Symbol symbol, std::uint32_t child, Symbol* unvisited, CountLevel* symbols) const {
    for (; *unvisited < symbol && options_.order > 1; ++*unvisited) {
      symbols->child_begin[*unvisited] = child;
    }
  }

  void StoreNode(int level, std::size_t index, const OpenNode& node, CountLevel* out) const {
    out->count[index] = node.count;
    if (level > 0) out->word[index] = node.word;
    if (level + 1 == options_.order) return;
    out->context_count[index] = node.context_count;
    out->child_begin[index] = node.first_child;
  }

  static void CloseLevels(CountTrie* trie) {
    for (int level = 0; level + 1 < trie->order(); ++level) {
      trie->levels[level].child_begin.back() =
          static_cast<std::uint32_t>(trie->levels[level + 1].size());
    }
  }

  // A symbol has a key for each occurrence but a final </s>, and for each first <s>.
  void TurnIntoEvents(CountTrie* trie) const {
    std::uint64_t num_sequences = 0;
    for (const auto& file : files_) num_sequences += file->totals().num_sequences;
    std::vector<std::uint64_t>& events = trie->levels[0].count;
    events[trie->vocabulary.bos] -= num_sequences;
    events[trie->vocabulary.eos] += num_sequences;
    CheckHasText(events, num_sequences);
  }

  const CountFiles& files_;
  const CountTrieOptions& options_;
  const KeyLayout layout_;
  const std::array<std::uint64_t, kMaxOrder> min_counts_;
  const std::vector<SymbolRange> ranges_;
  std::vector<PartSizes> sizes_;
};

}  // namespace

CountedNgrams BuildCountTrie(const CountFiles& files, const CountTrieOptions& options) {
  return CountTrieBuilder(files, options).Build();
}

}  // namespace lattice_bpd
