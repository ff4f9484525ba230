// Training takes no more memory than it says beforehand.
#include "lattice_bpd/train/training_memory.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "allocation_counter.h"
#include "counting_examples.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/train/estimate.h"

namespace lattice_bpd {
namespace {

constexpr std::int64_t kFixed = 1 << 20;  // tables of values and of windows, thread stacks

TEST_CASE("freed memory is given back, which assigning {} does not do") {
  std::vector<int> values(100000);
  FreeMemory(&values);
  CHECK(values.capacity() == 0);
  ResizeInHugePages(3000000, &values);
  CHECK(values == std::vector<int>(3000000));
}

TEST_CASE("estimation and packing take what TrainingBytes says, counts included") {
  std::mt19937 random(1);
  constexpr int kVocabSize = 1000;
  std::vector<TokenId> ids(300000);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % (1 + random() % kVocabSize));
  const std::vector<std::int64_t> offsets = {0, static_cast<std::int64_t>(ids.size())};
  for (const Smoothing smoothing : {Smoothing::kKatz, Smoothing::kModifiedKneserNey}) {
    CAPTURE(static_cast<int>(smoothing));
    EstimateOptions options;
    options.smoothing = smoothing;
    options.threads = 2;
    CountTrie counts =
        CountNgrams({ids, offsets}, MakeVocabulary(kVocabSize, {}), options.order, options.threads);
    std::vector<std::uint64_t> sizes;
    for (const CountLevel& level : counts.levels) sizes.push_back(level.size());
    const AllocationCounter later;
    const auto with_counts = static_cast<std::int64_t>(CountTrieBytes(sizes));
    BackoffLm::FromTrie(EstimateLm(std::move(counts), options, nullptr), Packing::kFast,
                        SuffixClosure::kKnown);
    CHECK(later.peak_bytes() + with_counts <
          static_cast<std::int64_t>(TrainingBytes(sizes, options)) + kFixed);
  }
}

}  // namespace
}  // namespace lattice_bpd
