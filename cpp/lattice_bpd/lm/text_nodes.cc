#include "lattice_bpd/lm/text_nodes.h"

#include <algorithm>

namespace lattice_bpd {

TextNodes::TextNodes(const BackoffLm& lm) : lm_(lm) {
  for (auto& nodes : nodes_) std::fill_n(nodes.begin(), kBefore, kNoNode);
}

void TextNodes::LookUp(Span<Symbol> symbols, std::size_t count) {
  for (int level = 0; level < lm_.order(); ++level) {
    auto& nodes = nodes_[level];
    std::copy_n(nodes.begin() + last_count_, kBefore, nodes.begin());
    std::fill_n(nodes.begin() + kBefore, count, kNoNode);
  }
  last_count_ = count;
  for (std::size_t i = 0; i < count; ++i) {
    nodes_[0][kBefore + i] = symbols[i];
    lm_.levels()[0].Prefetch(symbols[i]);
  }
  for (int level = 1; level < lm_.order(); ++level) {
    const std::size_t limit = symbols.size() - std::min<std::size_t>(symbols.size(), level);
    SearchRuns(level, symbols, OpenRuns(level, count, limit));
  }
}

// Finds where the children of each start's n-gram of `level` symbols are, and prefetches them.
std::size_t TextNodes::OpenRuns(int level, std::size_t count, std::size_t limit) {
  const PackedLevel& below = lm_.levels()[level - 1];
  const PackedLevel& here = lm_.levels()[level];
  const std::uint32_t* const nodes = nodes_[level - 1].data() + kBefore;
  std::size_t num_runs = 0;
  for (std::size_t i = 0; i < std::min(count, limit); ++i) {
    if (nodes[i] == kNoNode) continue;
    const auto [begin, end] = below.Children(nodes[i]);
    if (begin == end) continue;
    runs_[num_runs++] = {static_cast<std::uint32_t>(i), begin, end};
    here.PrefetchSearch(begin, end);
  }
  return num_runs;
}

void TextNodes::SearchRuns(int level, Span<Symbol> symbols, std::size_t num_runs) {
  const PackedLevel& here = lm_.levels()[level];
  std::uint32_t* const nodes = nodes_[level].data() + kBefore;
  for (std::size_t i = 0; i < num_runs; ++i) {  // long runs: samples first
    Run& run = runs_[i];
    here.Narrow(symbols[run.start + level], &run.begin, &run.end);
  }
  for (std::size_t i = 0; i < num_runs; ++i) {
    const Run& run = runs_[i];
    const std::uint32_t node = here.FindNarrowed(run.begin, run.end, symbols[run.start + level]);
    nodes[run.start] = node;
    if (node != kNoNode) here.Prefetch(node);
  }
}

}  // namespace lattice_bpd
