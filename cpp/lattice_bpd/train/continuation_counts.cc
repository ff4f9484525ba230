#include "lattice_bpd/train/continuation_counts.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "lattice_bpd/lm/suffix_links.h"

namespace lattice_bpd {
namespace {

constexpr std::uint64_t kOne = 1;

void SumContexts(const CountLevel& children, CountLevel* contexts) {
  for (std::size_t i = 0; i < contexts->size(); ++i) {
    const auto first = children.count.begin() + contexts->child_begin[i];
    const auto last = children.count.begin() + contexts->child_begin[i + 1];
    contexts->context_count[i] = std::accumulate(first, last, std::uint64_t{0});
  }
}

}  // namespace

void UseContinuationCounts(int num_threads, CountTrie* trie) {
  std::vector<CountLevel>& levels = trie->levels;
  std::vector<std::uint32_t> links;
  std::uint32_t bos_begin = 0;  // the n-grams of a level that start with <s>: none of order 1
  std::uint32_t bos_end = 0;
  for (int m = 0; m + 1 < trie->order(); ++m) {
    links = LinkLevel(levels, m + 1, links, num_threads);
    std::vector<std::uint64_t> continuations(levels[m].size(), 0);
    for (std::size_t i = 0; i < links.size(); ++i) {
      if (levels[m + 1].count[i] > 0) ++continuations[links[i]];
    }
    for (std::size_t i = 0; i < continuations.size(); ++i) {
      const bool from_bos = bos_begin <= i && i < bos_end;
      const std::uint64_t count = levels[m].count[i];
      continuations[i] = from_bos ? count : std::max(continuations[i], std::min(count, kOne));
    }
    levels[m].count = std::move(continuations);
    const Symbol bos = trie->vocabulary.bos;
    bos_begin = levels[m].child_begin[m == 0 ? bos : bos_begin];
    bos_end = levels[m].child_begin[m == 0 ? bos + 1 : bos_end];
    if (m > 0) SumContexts(levels[m], &levels[m - 1]);
  }
}

}  // namespace lattice_bpd
