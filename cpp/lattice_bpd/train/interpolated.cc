#include "lattice_bpd/train/interpolated.h"

#include <cmath>
#include <utility>

#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/lm/suffix_links.h"
#include "lattice_bpd/train/backed_off.h"
#include "lattice_bpd/train/backoff_weights.h"
#include "lattice_bpd/train/discounts.h"
#include "lattice_bpd/train/unigrams.h"

namespace lattice_bpd {
namespace {

// One order: a(w | h) and what it leaves to the lower order.
struct OrderInterpolator {
  const CountLevel& contexts;
  const CountLevel& counts;
  const std::vector<std::uint32_t>& links;  // suffixes of the level's n-grams
  const std::vector<double>& lower;         // probabilities of the level below
  const AbsoluteDiscounts discounts;
  const bool count_types;  // Witten-Bell: C + T below the line

  void EstimateContext(std::size_t context, std::vector<double>* prob) const {
    const std::uint32_t begin = contexts.child_begin[context];
    const std::uint32_t end = contexts.child_begin[context + 1];
    if (begin == end) return;
    double total = static_cast<double>(contexts.context_count[context]);
    double kept = 0.0;
    for (std::uint32_t i = begin; i < end; ++i) {
      if (count_types && counts.count[i] > 0) total += 1.0;
      (*prob)[i] = static_cast<double>(counts.count[i]) - discounts(counts.count[i]);
      kept += (*prob)[i];
    }
    if (total == 0.0) total = 1.0;  // never followed by anything: all mass goes to lower orders
    const double left = (total - kept) / total;
    for (std::uint32_t i = begin; i < end; ++i) {
      (*prob)[i] = (*prob)[i] / total + left * lower[links[i]];
    }
  }
};

AbsoluteDiscounts DiscountsOf(int order, const CountOfCounts& n, Smoothing smoothing,
                              TrainReport* report) {
  if (smoothing == Smoothing::kWittenBell) return {};
  if (smoothing == Smoothing::kModifiedKneserNey) return ThreeDiscounts(order, n, report);
  return OneDiscount(n);
}

std::vector<float> ToLogs(const std::vector<double>& prob, int num_threads) {
  std::vector<float> logs(prob.size());
  constexpr std::size_t kBlock = 1 << 16;
  RunParallel((prob.size() + kBlock - 1) / kBlock, num_threads, [&](std::size_t block) {
    const std::size_t end = std::min(prob.size(), (block + 1) * kBlock);
    for (std::size_t i = block * kBlock; i < end; ++i) {
      logs[i] = std::min(0.0f, static_cast<float>(std::log(prob[i])));
    }
  });
  return logs;
}

}  // namespace

Trie EstimateInterpolated(CountTrie counts, const std::vector<CountOfCounts>& count_of_counts,
                          const EstimateOptions& options, TrainReport* report) {
  const int threads = ResolveThreads(options.threads);
  std::vector<CountLevel>& levels = counts.levels;
  Trie trie{counts.vocabulary, std::vector<TrieLevel>(levels.size())};
  CountLevel unigrams;
  unigrams.count = levels[0].count;
  trie.levels[0] =
      EstimateUnigrams(counts.vocabulary, std::move(unigrams), count_of_counts[0], options, report);
  std::vector<double> lower(trie.levels[0].size());
  for (std::size_t i = 0; i < lower.size(); ++i) lower[i] = std::exp(trie.levels[0].log_prob[i]);
  std::vector<std::uint32_t> links;
  for (int m = 1; m < counts.order(); ++m) {
    links = LinkLevel(levels, m, links, threads);
    const OrderInterpolator order{levels[m - 1],
                                  levels[m],
                                  links,
                                  lower,
                                  DiscountsOf(m + 1, count_of_counts[m], options.smoothing, report),
                                  options.smoothing == Smoothing::kWittenBell};
    std::vector<double> prob(levels[m].size());
    RunOverContexts(levels[m - 1].child_begin, threads, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) order.EstimateContext(i, &prob);
    });
    trie.levels[m].log_prob = ToLogs(prob, threads);
    lower = std::move(prob);
    FreeMemory(&levels[m - 1].count);
    FreeMemory(&levels[m - 1].context_count);
  }
  FreeMemory(&levels.back().count);
  for (int m = 0; m < counts.order(); ++m) {
    trie.levels[m].word = std::move(levels[m].word);
    trie.levels[m].child_begin = std::move(levels[m].child_begin);
  }
  AssignBackedOff(threads, &trie);
  AssignBackoffWeights(threads, &trie);
  return trie;
}

}  // namespace lattice_bpd
