#include "lattice_bpd/train/backoff_weights.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/lm/suffix_links.h"

namespace lattice_bpd {
namespace {

constexpr double kSmallestCost = 1e-9;

// Below this much, 1 - sum is mostly the rounding of the float32 log probabilities in the sum.
constexpr double kRoundingShows = 1e-5;

// 1 - sum, never 0: the same as 1 - exp(-max(-ln(sum), kSmallestCost)).
double MassLeft(double sum) { return std::max(1.0 - sum, kSmallestCost); }

// A sum that does not lose the small terms behind the large (Kahan).
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

// Levels go upwards: the weights of the contexts on level m - 1 need the n-grams of level m and,
// for their suffixes, those of level m - 1.
class BackoffAssigner {
 public:
  BackoffAssigner(int num_threads, Trie* trie)
      : num_threads_(num_threads),
        num_words_(CountWordsWithMass(*trie)),
        trie_(*trie),
        links_(trie->levels.size()) {}

  void Run() {
    below_ = ProbsOfLevel(0);
    for (int level = 1; level < trie_.order(); ++level) {
      links_[level] = LinkLevel(trie_.levels, level, links_[level - 1], num_threads_);
      std::vector<double> prob = ProbsOfLevel(level);
      AssignContexts(level, prob);
      below_ = std::move(prob);
    }
  }

 private:
  std::vector<double> ProbsOfLevel(int level) const;
  void AssignContexts(int level, const std::vector<double>& prob);
  float WeightOf(int level, std::uint32_t context, const std::vector<double>& prob) const;
  double MassNotStored(int level, std::uint32_t context) const;
  double LogProb(int level, std::uint32_t context, Symbol word) const;

  const int num_threads_;
  const std::uint64_t num_words_;
  Trie& trie_;
  std::vector<std::vector<std::uint32_t>> links_;  // [m]: suffixes of level m's nodes
  std::vector<double> below_;                      // probabilities of the level below
};

std::vector<double> BackoffAssigner::ProbsOfLevel(int level) const {
  const std::vector<float>& log_prob = trie_.levels[level].log_prob;
  std::vector<double> prob(log_prob.size());
  constexpr std::size_t kBlock = 1 << 16;
  RunParallel((prob.size() + kBlock - 1) / kBlock, num_threads_, [&](std::size_t block) {
    const std::size_t end = std::min(prob.size(), (block + 1) * kBlock);
    for (std::size_t i = block * kBlock; i < end; ++i) {
      prob[i] = std::exp(static_cast<double>(log_prob[i]));
    }
  });
  return prob;
}

void BackoffAssigner::AssignContexts(int level, const std::vector<double>& prob) {
  TrieLevel& contexts = trie_.levels[level - 1];
  contexts.backoff.resize(contexts.size());
  RunOverContexts(contexts.child_begin, num_threads_, [&](std::size_t first, std::size_t last) {
    for (std::size_t context = first; context < last; ++context) {
      contexts.backoff[context] = WeightOf(level, static_cast<std::uint32_t>(context), prob);
    }
  });
}

// ln backoff weight of a context whose n-grams are on `level`.
float BackoffAssigner::WeightOf(int level, std::uint32_t context,
                                const std::vector<double>& prob) const {
  const std::vector<std::uint32_t>& child_begin = trie_.levels[level - 1].child_begin;
  const std::uint32_t begin = child_begin[context];
  const std::uint32_t end = child_begin[context + 1];
  if (begin == end) return 0.0f;
  if (end - begin == num_words_) return kNoBackoff;
  KahanSum here;
  KahanSum lower;
  for (std::uint32_t i = begin; i < end; ++i) {
    here.Add(prob[i]);
    lower.Add(below_[links_[level][i]]);
  }
  const double lower_left =
      lower.value() < 1.0 - kRoundingShows ? 1.0 - lower.value() : MassNotStored(level, context);
  return static_cast<float>(std::log(MassLeft(here.value()) / lower_left));
}

// Sum over the words not stored at the context of their probability after its suffix.
double BackoffAssigner::MassNotStored(int level, std::uint32_t context) const {
  const ChildLists stored = ChildListsOfLevel(trie_.levels, level);
  const std::vector<float>& unigrams = trie_.levels[0].log_prob;
  const std::uint32_t end = stored.child_begin[context + 1];
  KahanSum sum;
  for (Symbol word = 0; word < unigrams.size(); ++word) {
    if (!HasMass(unigrams[word])) continue;
    if (FindChild(stored.word, stored.child_begin[context], end, word) != end) continue;
    const double log_prob =
        level == 1 ? unigrams[word] : LogProb(level - 1, links_[level - 1][context], word);
    sum.Add(std::exp(log_prob));
  }
  return sum.value();  // not 0: a context that stores every word does not come here
}

// ln P(word | context), where the context's n-grams are on `level`; backs off as queries do.
double BackoffAssigner::LogProb(int level, std::uint32_t context, Symbol word) const {
  const ChildLists stored = ChildListsOfLevel(trie_.levels, level);
  const std::uint32_t end = stored.child_begin[context + 1];
  const std::uint32_t node = FindChild(stored.word, stored.child_begin[context], end, word);
  if (node != end) return trie_.levels[level].log_prob[node];
  const double weight = trie_.levels[level - 1].backoff[context];
  if (level == 1) return weight + trie_.levels[0].log_prob[word];
  return weight + LogProb(level - 1, links_[level - 1][context], word);
}

}  // namespace

std::uint64_t CountWordsWithMass(const Trie& trie) {
  const std::vector<float>& unigrams = trie.levels[0].log_prob;
  return static_cast<std::uint64_t>(std::count_if(unigrams.begin(), unigrams.end(), HasMass));
}

void AssignBackoffWeights(int num_threads, Trie* trie) { BackoffAssigner(num_threads, trie).Run(); }

}  // namespace lattice_bpd
