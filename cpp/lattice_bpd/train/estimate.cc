#include "lattice_bpd/train/estimate.h"

#include <utility>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/train/continuation_counts.h"
#include "lattice_bpd/train/count_pruning.h"
#include "lattice_bpd/train/interpolated.h"
#include "lattice_bpd/train/katz.h"
#include "lattice_bpd/train/training_memory.h"

namespace lattice_bpd {
namespace {

bool UsesContinuations(Smoothing smoothing) {
  return smoothing == Smoothing::kKneserNey || smoothing == Smoothing::kModifiedKneserNey;
}

void ReportLowerOrder(const EstimateOptions& options, int order, TrainReport* report) {
  if (order == options.order || report == nullptr) return;
  report->Add(StrCat("no n-gram of order ", order + 1, " is left, so the LM has order ", order,
                     " instead of ", options.order,
                     "; sequences are too short or min_counts too high"));
}

}  // namespace

Trie EstimateLm(CountTrie counts, const EstimateOptions& options, TrainReport* report,
                const std::vector<CountOfCounts>* full_count_of_counts) {
  if (options.smoothing == Smoothing::kKatz) CheckKatzK(options.katz_k);
  const int threads = ResolveThreads(options.threads);
  // min_counts are about occurrences, so n-grams are marked before their counts are replaced.
  const std::vector<Marks> stays = MarkFrequentNgrams(options.min_counts, threads, counts);
  if (!options.full_count_of_counts) KeepMarkedNgrams(stays, &counts);
  DropEmptyLevels(&counts);
  if (UsesContinuations(options.smoothing)) UseContinuationCounts(threads, &counts);
  const bool known = full_count_of_counts != nullptr && options.full_count_of_counts;
  const std::vector<CountOfCounts> n = known ? *full_count_of_counts : CountCountsOfLevels(counts);
  if (options.full_count_of_counts) KeepMarkedNgrams(stays, &counts);
  ReportLowerOrder(options, counts.order(), report);
  return options.smoothing == Smoothing::kKatz
             ? EstimateKatz(std::move(counts), n, options, report)
             : EstimateInterpolated(std::move(counts), n, options, report);
}

Trie TrainLm(const TokenSequences& sequences, const Vocabulary& vocabulary,
             const EstimateOptions& options, TrainReport* report) {
  const int threads = ResolveThreads(options.threads);
  return EstimateLm(CountNgrams(sequences, vocabulary, options.order, threads), options, report);
}

Trie TrainLm(CorpusCounter* counter, const EstimateOptions& options, TrainReport* report) {
  const auto check_sizes = [&](const std::vector<std::uint64_t>& num_ngrams) {
    CheckTrainingMemory(num_ngrams, options, counter->memory());
  };
  if (UsesContinuations(options.smoothing)) {
    return EstimateLm(counter->Finish({}, check_sizes).trie, options, report);
  }
  CountedNgrams counted = counter->Finish(options.min_counts, check_sizes);
  return EstimateLm(std::move(counted.trie), options, report, &counted.count_of_counts);
}

}  // namespace lattice_bpd
