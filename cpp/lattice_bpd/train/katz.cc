#include "lattice_bpd/train/katz.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/lm/suffix_links.h"
#include "lattice_bpd/train/backed_off.h"
#include "lattice_bpd/train/backoff_weights.h"
#include "lattice_bpd/train/unigrams.h"

namespace lattice_bpd {
namespace {

// Estimates the n-grams of one order, context by context.
class OrderEstimator {
 public:
  OrderEstimator(const CountLevel& contexts, const CountLevel& counts,
                 const GoodTuringDiscounts& discounts, Symbol eos, std::uint64_t num_words,
                 std::vector<float>* log_prob)
      : contexts_(contexts),
        counts_(counts),
        discounts_(discounts),
        eos_(eos),
        num_words_(num_words),
        log_prob_(*log_prob) {}

  void EstimateContext(std::size_t context) const {
    const std::uint32_t begin = contexts_.child_begin[context];
    const std::uint32_t end = contexts_.child_begin[context + 1];
    const double total = static_cast<double>(contexts_.context_count[context]);
    std::uint64_t num_seen = 0;
    for (std::uint32_t i = begin; i < end; ++i) {
      const std::uint64_t count = counts_.count[i];
      if (count == 0) {  // AssignBackedOff
        log_prob_[i] = -std::numeric_limits<float>::infinity();
        continue;
      }
      ++num_seen;
      const double prob = discounts_(count) * static_cast<double>(count) / total;
      log_prob_[i] = static_cast<float>(std::log(prob));
    }
    if (num_seen == num_words_) GiveRestToEos(begin, end);
  }

 private:
  // Every word follows: no word is left to back off to.
  void GiveRestToEos(std::uint32_t begin, std::uint32_t end) const {
    const std::uint32_t eos = FindChild(counts_.word, begin, end, eos_);
    if (eos == end) return;
    double others = 0.0;
    for (std::uint32_t i = begin; i < end; ++i) {
      if (i != eos) others += std::exp(static_cast<double>(log_prob_[i]));
    }
    log_prob_[eos] = static_cast<float>(std::log1p(-others));
  }

  const CountLevel& contexts_;
  const CountLevel& counts_;
  const GoodTuringDiscounts& discounts_;
  const Symbol eos_;
  const std::uint64_t num_words_;
  std::vector<float>& log_prob_;
};

std::vector<float> EstimateOrder(const CountTrie& counts, int level,
                                 const GoodTuringDiscounts& discounts, std::uint64_t num_words,
                                 int num_threads) {
  const CountLevel& contexts = counts.levels[level - 1];
  std::vector<float> log_prob;
  ResizeInHugePages(counts.levels[level].size(), &log_prob);
  const OrderEstimator estimator(contexts, counts.levels[level], discounts, counts.vocabulary.eos,
                                 num_words, &log_prob);
  RunOverContexts(contexts.child_begin, num_threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) estimator.EstimateContext(i);
  });
  return log_prob;
}

void Report(std::string line, TrainReport* report) {
  if (report != nullptr) report->Add(std::move(line));
}

}  // namespace

std::vector<CountOfCounts> CountCountsOfLevels(const CountTrie& counts) {
  std::vector<CountOfCounts> n(counts.levels.size());
  std::transform(counts.levels.begin(), counts.levels.end(), n.begin(), CountCounts);
  return n;
}

Trie EstimateKatz(CountTrie counts, const std::vector<CountOfCounts>& count_of_counts,
                  const EstimateOptions& options, TrainReport* report) {
  CheckKatzK(options.katz_k);
  const int threads = ResolveThreads(options.threads);
  const std::uint64_t num_words =
      CountUnigramEvents(counts.vocabulary, counts.levels[0], options.unseen);
  Trie trie{counts.vocabulary, std::vector<TrieLevel>(counts.levels.size())};
  for (int level = 1; level < counts.order(); ++level) {
    const CountOfCounts& n = count_of_counts[level];
    Report(DescribeViolations(level + 1, n, CountCounts(counts.levels[level]), options.katz_k),
           report);
    trie.levels[level].log_prob =
        EstimateOrder(counts, level, ComputeGoodTuring(n, options.katz_k), num_words, threads);
    FreeMemory(&counts.levels[level - 1].context_count);
    FreeMemory(&counts.levels[level].count);
  }
  trie.levels[0] = EstimateUnigrams(counts.vocabulary, std::move(counts.levels[0]),
                                    count_of_counts[0], options, report);
  for (int level = 1; level < counts.order(); ++level) {
    trie.levels[level].word = std::move(counts.levels[level].word);
    trie.levels[level].child_begin = std::move(counts.levels[level].child_begin);
  }
  AssignBackedOff(threads, &trie);
  AssignBackoffWeights(threads, &trie);
  return trie;
}

}  // namespace lattice_bpd
