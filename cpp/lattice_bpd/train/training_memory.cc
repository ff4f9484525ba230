#include "lattice_bpd/train/training_memory.h"

#include <algorithm>
#include <numeric>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

using Sizes = std::vector<std::uint64_t>;

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;

std::uint64_t Sum(const Sizes& sizes, std::size_t first, std::size_t last) {
  return std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(first),
                         sizes.begin() + static_cast<std::ptrdiff_t>(last), std::uint64_t{0});
}

// The largest of bytes(m) over the orders above the first.
template <typename Bytes>
std::uint64_t Largest(const Sizes& sizes, const Bytes& bytes) {
  std::uint64_t largest = 0;
  for (std::size_t m = 1; m < sizes.size(); ++m) largest = std::max(largest, bytes(m));
  return largest;
}

// Marks and suffix links of all orders.
std::uint64_t MarkingBytes(const Sizes& sizes, const EstimateOptions& options) {
  const auto& counts = options.min_counts;
  const bool marks = std::any_of(counts.begin(), counts.end(), [](auto c) { return c > 1; });
  return marks ? 5 * Sum(sizes, 0, sizes.size()) : 0;
}

// Probabilities of two orders in double, and suffix links; for the interpolated methods.
std::uint64_t InterpolationBytes(const Sizes& sizes) {
  return Largest(sizes, [&](std::size_t m) { return 12 * sizes[m] + 16 * sizes[m - 1]; });
}

// ContextMasses: probabilities of an order, what is left, links of two orders and sorted contexts.
std::uint64_t BackoffBytes(const Sizes& sizes) {
  return Largest(sizes, [&](std::size_t m) {
    return 4 * sizes[m] + 16 * sizes[m - 1] + (m > 1 ? 8 * sizes[m - 2] : 0);
  });
}

std::uint64_t TrieBytes(const Sizes& sizes) {
  return 16 * Sum(sizes, 0, sizes.size() - 1) + 8 * sizes.back();
}

}  // namespace

std::uint64_t CountTrieBytes(const std::vector<std::uint64_t>& num_ngrams) {
  return 24 * Sum(num_ngrams, 0, num_ngrams.size() - 1) + 12 * num_ngrams.back();
}

std::uint64_t TrainingBytes(const std::vector<std::uint64_t>& num_ngrams,
                            const EstimateOptions& options) {
  const Sizes& sizes = num_ngrams;
  const std::uint64_t counts = CountTrieBytes(sizes);
  const std::uint64_t marking = counts + MarkingBytes(sizes, options);
  const bool katz = options.smoothing == Smoothing::kKatz;
  const std::uint64_t estimation =
      counts + 4 * Sum(sizes, 0, sizes.size()) + (katz ? 0 : InterpolationBytes(sizes));
  const std::uint64_t trie = TrieBytes(sizes);
  const std::uint64_t packing = trie + TrieBytes(sizes);
  const std::uint64_t most = std::max({marking, estimation, trie + BackoffBytes(sizes), packing});
  return most + most / 8;  // and what the allocator cannot use
}

void CheckTrainingMemory(const std::vector<std::uint64_t>& num_ngrams,
                         const EstimateOptions& options, std::uint64_t memory) {
  const std::uint64_t needed = TrainingBytes(num_ngrams, options);
  if (needed <= memory) return;
  const std::uint64_t mebibytes = (needed + kMebibyte - 1) / kMebibyte;
  throw ValueError(StrCat("n-gram training: the LM has ", Sum(num_ngrams, 0, num_ngrams.size()),
                          " n-grams; estimating it needs about ", mebibytes, " MiB, memory is ",
                          memory / kMebibyte, " MiB: raise memory (--memory ", mebibytes,
                          "M), drop rare n-grams (min_counts, --min-counts), or take a lower "
                          "order"));
}

}  // namespace lattice_bpd
