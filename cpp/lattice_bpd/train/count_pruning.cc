#include "lattice_bpd/train/count_pruning.h"

#include <algorithm>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/lm/suffix_links.h"

namespace lattice_bpd {
namespace {

void CheckMinCounts(const std::vector<std::uint64_t>& min_counts, int order) {
  if (min_counts.size() != static_cast<std::size_t>(order)) {
    throw ValueError(StrCat("min_counts has ", min_counts.size(), " entries; expected ", order,
                            ", one for each order from 1 to ", order));
  }
  const auto zero = std::find(min_counts.begin(), min_counts.end(), 0);
  if (zero == min_counts.end()) return;
  throw ValueError(StrCat("min_counts[", zero - min_counts.begin(),
                          "] is 0; expected at least 1, which keeps every n-gram"));
}

Marks MarkFrequent(const CountLevel& level, std::uint64_t min_count) {
  Marks stays(level.size());
  std::transform(level.count.begin(), level.count.end(), stays.begin(),
                 [&](std::uint64_t count) { return count >= min_count; });
  return stays;
}

void Compact(const std::vector<Marks>& stays, std::vector<CountLevel>* levels) {
  for (std::size_t m = 0; m < levels->size(); ++m) {
    CountLevel& level = (*levels)[m];
    if (m + 1 < levels->size()) RenumberChildren(stays[m + 1], &level.child_begin);
    if (m == 0) {
      for (std::size_t i = 0; i < level.size(); ++i) level.count[i] *= stays[0][i];
      continue;
    }
    KeepMarked(stays[m], &level.word);
    KeepMarked(stays[m], &level.count);
    if (m + 1 == levels->size()) break;
    KeepMarked(stays[m], &level.context_count);
    KeepMarkedBounds(stays[m], &level.child_begin);
  }
}

}  // namespace

std::vector<Marks> MarkFrequentNgrams(const std::vector<std::uint64_t>& min_counts, int num_threads,
                                      const CountTrie& trie) {
  if (min_counts.empty()) return {};
  const int order = trie.order();
  CheckMinCounts(min_counts, order);
  if (*std::max_element(min_counts.begin(), min_counts.end()) == 1) return {};
  std::vector<std::vector<std::uint32_t>> links(order);
  for (int m = 1; m < order; ++m) {
    links[m] = LinkLevel(trie.levels, m, links[m - 1], num_threads);
  }
  std::vector<Marks> stays(order);
  for (int m = 0; m < order; ++m) stays[m] = MarkFrequent(trie.levels[m], min_counts[m]);
  stays[0][trie.vocabulary.eos] = 1;
  for (int m = order - 1; m > 0; --m) {
    MarkParts(stays[m], ChildListsOfLevel(trie.levels, m), links[m], &stays[m - 1]);
    FreeMemory(&links[m]);
  }
  return stays;
}

void KeepMarkedNgrams(const std::vector<Marks>& stays, CountTrie* trie) {
  if (!stays.empty()) Compact(stays, &trie->levels);
  DropEmptyLevels(trie);
}

void PruneByCount(const std::vector<std::uint64_t>& min_counts, int num_threads, CountTrie* trie) {
  const std::vector<Marks> stays = MarkFrequentNgrams(min_counts, num_threads, *trie);
  if (!stays.empty()) KeepMarkedNgrams(stays, trie);
}

void DropEmptyLevels(CountTrie* trie) {
  std::vector<CountLevel>& levels = trie->levels;
  while (levels.size() > 1 && levels.back().word.empty()) {
    levels.pop_back();
    FreeMemory(&levels.back().context_count);
    FreeMemory(&levels.back().child_begin);
  }
}

}  // namespace lattice_bpd
