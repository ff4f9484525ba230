#include "lattice_bpd/train/context_mass.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/lm/suffix_links.h"

namespace lattice_bpd {
namespace {

constexpr double kSmallestCost = 1e-9;

// Below this much, 1 - sum is mostly the rounding of the float32 log probabilities in the sum.
constexpr double kRoundingShows = 1e-5;

// 1 - sum, never 0: the same as 1 - exp(-max(-ln(sum), kSmallestCost)).
double MassLeft(double sum) { return std::max(1.0 - sum, kSmallestCost); }

// How many n-grams ahead the suffix's probability is prefetched: each is a miss in a large array.
constexpr std::size_t kAhead = 32;

// Kahan summation: small terms are not lost.
class KahanSum {
 public:
  void Add(double term) {
    const double corrected = term - lost_;
    const double sum = sum_ + corrected;
    lost_ = (sum - sum_) - corrected;
    sum_ = sum;
  }
  double value() const { return sum_; }

 private:
  double sum_ = 0.0;
  double lost_ = 0.0;
};

}  // namespace

std::uint64_t CountWordsWithMass(const Trie& trie) {
  const std::vector<float>& unigrams = trie.levels[0].log_prob;
  return static_cast<std::uint64_t>(std::count_if(unigrams.begin(), unigrams.end(), HasMass));
}

ContextMasses::ContextMasses(int num_threads, const Trie& trie)
    : num_threads_(num_threads),
      trie_(trie),
      num_words_(CountWordsWithMass(trie)),
      links_(trie.levels.size()) {}

void ContextMasses::Advance() {
  if (level_ > 0) FreeMemory(&links_[level_ - 1]);
  FreeMemory(&below_);
  below_ = ProbsOfLevel();
  if (level_ > 0) left_below_ = MassLeftOfLevel(below_);
  ++level_;
  links_[level_] = LinkLevel(trie_.levels, level_, links_[level_ - 1], num_threads_);
}

bool ContextMasses::StoresEveryWord(std::uint32_t context) const {
  const std::uint32_t begin = trie_.levels[level_ - 1].child_begin[context];
  const std::uint32_t end = trie_.levels[level_ - 1].child_begin[context + 1];
  if (end - begin < num_words_) return false;
  std::uint64_t with_mass = 0;  // histories of targets may have none (count_targets.h)
  for (std::uint32_t i = begin; i < end; ++i) {
    with_mass += HasMass(trie_.levels[0].log_prob[trie_.levels[level_].word[i]]);
  }
  return with_mass == num_words_;
}

ContextMass ContextMasses::Of(std::uint32_t context) const {
  const std::vector<std::uint32_t>& child_begin = trie_.levels[level_ - 1].child_begin;
  const std::vector<float>& log_prob = trie_.levels[level_].log_prob;
  const std::vector<std::uint32_t>& links = links_[level_];
  KahanSum here;
  KahanSum lower;
  for (std::uint32_t i = child_begin[context]; i < child_begin[context + 1]; ++i) {
    here.Add(std::exp(static_cast<double>(log_prob[i])));
    if (i + kAhead < links.size()) __builtin_prefetch(below_.data() + links[i + kAhead]);
    lower.Add(below_[links[i]]);
  }
  const double lower_left =
      lower.value() < 1.0 - kRoundingShows ? 1.0 - lower.value() : MassNotStored(context);
  return {MassLeft(here.value()), lower_left};
}

std::vector<double> ContextMasses::ProbsOfLevel() const {
  const std::vector<float>& log_prob = trie_.levels[level_].log_prob;
  std::vector<double> prob;
  ResizeInHugePages(log_prob.size(), &prob);
  constexpr std::size_t kBlock = 1 << 16;
  RunParallel((prob.size() + kBlock - 1) / kBlock, num_threads_, [&](std::size_t block) {
    const std::size_t end = std::min(prob.size(), (block + 1) * kBlock);
    for (std::size_t i = block * kBlock; i < end; ++i) {
      prob[i] = std::exp(static_cast<double>(log_prob[i]));
    }
  });
  return prob;
}

std::vector<double> ContextMasses::MassLeftOfLevel(const std::vector<double>& prob) const {
  const std::vector<std::uint32_t>& child_begin = trie_.levels[level_ - 1].child_begin;
  std::vector<double> left(child_begin.size() - 1, 1.0);
  RunOverContexts(child_begin, num_threads_, [&](std::size_t first, std::size_t last) {
    for (std::size_t context = first; context < last; ++context) {
      KahanSum here;
      for (std::uint32_t i = child_begin[context]; i < child_begin[context + 1]; ++i) {
        here.Add(prob[i]);
      }
      const bool everything = StoresEveryWord(static_cast<std::uint32_t>(context));
      left[context] = everything ? 0.0 : MassLeft(here.value());
    }
  });
  return left;
}

// Sum over the words not stored at the context of their probability after its suffix h': those
// that h' stores, and all that h' leaves to its own backoff.
double ContextMasses::MassNotStored(std::uint32_t context) const {
  const std::vector<std::uint32_t>& child_begin = trie_.levels[level_ - 1].child_begin;
  std::uint32_t stored = child_begin[context];
  const auto is_stored = [&](std::uint32_t suffix) {
    if (stored == child_begin[context + 1] || links_[level_][stored] != suffix) return false;
    ++stored;
    return true;
  };
  KahanSum sum;
  if (level_ == 1) {
    for (Symbol word = 0; word < below_.size(); ++word) {
      if (!is_stored(word) && HasMass(trie_.levels[0].log_prob[word])) sum.Add(below_[word]);
    }
  } else {
    const std::uint32_t suffix = links_[level_ - 1][context];
    const std::vector<std::uint32_t>& lower_begin = trie_.levels[level_ - 2].child_begin;
    for (std::uint32_t i = lower_begin[suffix]; i < lower_begin[suffix + 1]; ++i) {
      if (!is_stored(i)) sum.Add(below_[i]);
    }
    sum.Add(left_below_[suffix]);
  }
  return sum.value() > 0.0 ? sum.value() : kSmallestCost;  // 0: h stores every word
}

}  // namespace lattice_bpd
