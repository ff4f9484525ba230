#include "lattice_bpd/train/prune.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/train/backoff_weights.h"
#include "lattice_bpd/train/marked_nodes.h"
#include "lattice_bpd/train/prune_scores.h"

namespace lattice_bpd {
namespace {

void DropEmptyLevels(Trie* trie) {
  while (trie->order() > 1 && trie->levels.back().word.empty()) {
    trie->levels.pop_back();
    FreeMemory(&trie->levels.back().backoff);
    FreeMemory(&trie->levels.back().child_begin);
  }
}

// Keeps the marked nodes (closed; [0] is not used).
Trie KeepNodes(Trie trie, const std::vector<Marks>& stays) {
  for (int m = 0; m < trie.order(); ++m) {
    TrieLevel& level = trie.levels[m];
    if (m + 1 < trie.order()) RenumberChildren(stays[m + 1], &level.child_begin);
    if (m == 0) continue;
    KeepMarked(stays[m], &level.word);
    KeepMarked(stays[m], &level.log_prob);
    if (m + 1 < trie.order()) KeepMarkedBounds(stays[m], &level.child_begin);
  }
  DropEmptyLevels(&trie);
  return trie;
}

Trie Keep(Trie trie, const std::vector<Marks>& stays, int num_threads) {
  trie = KeepNodes(std::move(trie), stays);
  AssignBackoffWeights(num_threads, &trie);
  return trie;
}

std::vector<Marks> MarkFrom(const NgramScores& scores, double threshold) {
  std::vector<Marks> stays(scores.size());
  for (std::size_t m = 1; m < scores.size(); ++m) {
    stays[m].resize(scores[m].size());
    std::transform(scores[m].begin(), scores[m].end(), stays[m].begin(),
                   [&](double score) { return score >= threshold; });
  }
  return stays;
}

// The threshold that `num_removed` (1 or more) of the scores, or some more that tie, lie below.
double ThresholdAbove(const NgramScores& scores, std::size_t num_removed) {
  std::vector<double> all;
  for (const std::vector<double>& level : scores) all.insert(all.end(), level.begin(), level.end());
  const auto last_removed = all.begin() + static_cast<std::ptrdiff_t>(num_removed - 1);
  std::nth_element(all.begin(), last_removed, all.end());
  const double score = *last_removed;
  double next = std::numeric_limits<double>::infinity();
  for (auto at = last_removed + 1; at != all.end(); ++at) {
    if (*at > score) next = std::min(next, *at);
  }
  if (std::isinf(next)) return score + 1.0;
  const double middle = (score + next) / 2.0;
  return middle > score ? middle : next;
}

// The two smallest unigram probabilities that differ.
double SmallestUnigramGap(const Trie& trie) {
  float first = 0.0f;
  float second = 0.0f;
  for (const float log_prob : trie.levels[0].log_prob) {
    if (!HasMass(log_prob) || log_prob == first) continue;
    if (log_prob < first) {
      second = first;
      first = log_prob;
    } else {
      second = std::min(second, log_prob);
    }
  }
  if (second == 0.0f) {
    throw ValueError(
        "prune by counts: all unigrams of the LM have the same probability, so "
        "counts cannot be told from it; prune by theta or to a number of n-grams");
  }
  return std::exp(static_cast<double>(second)) - std::exp(static_cast<double>(first));
}

// Scales log_prob[begin .. end - 1] to sum to 1; entries without mass stay.
void ScaleToOne(std::size_t begin, std::size_t end, std::vector<float>* log_prob) {
  double sum = 0.0;
  for (std::size_t i = begin; i < end; ++i) {
    if (HasMass((*log_prob)[i])) sum += std::exp(double{(*log_prob)[i]});
  }
  if (sum == 0.0) {
    throw ValueError(
        "prune by vocabulary: no token id of the list has a probability in the LM; "
        "expected one at least");
  }
  for (std::size_t i = begin; i < end; ++i) {
    float& value = (*log_prob)[i];
    if (HasMass(value)) value = std::min(0.0f, static_cast<float>(value - std::log(sum)));
  }
}

// Contexts that every word follows have no backoff to leave mass to.
void ScaleCompleteContexts(Trie* trie) {
  const std::uint64_t num_words = CountWordsWithMass(*trie);
  for (int m = 1; m < trie->order(); ++m) {
    const std::vector<std::uint32_t>& begin = trie->levels[m - 1].child_begin;
    for (std::size_t i = 0; i + 1 < begin.size(); ++i) {
      if (begin[i + 1] - begin[i] != num_words) continue;
      ScaleToOne(begin[i], begin[i + 1], &trie->levels[m].log_prob);
    }
  }
}

}  // namespace

std::uint64_t CountPrunable(const Trie& trie) {
  std::uint64_t count = CountWordsWithMass(trie);
  for (int m = 1; m < trie.order(); ++m) count += trie.levels[m].size();
  return count;
}

Trie PruneByEntropy(Trie trie, double theta, int num_threads) {
  if (!(theta >= 0.0)) {
    throw ValueError(StrCat("prune: theta is ", theta, "; expected 0 or above"));
  }
  const int threads = ResolveThreads(num_threads);
  NgramScores scores = RelativeEntropyScores(trie, threads);
  RaiseToExtensions(trie, threads, &scores);
  return Keep(std::move(trie), MarkFrom(scores, std::log1p(theta)), threads);
}

Trie PruneToSize(Trie trie, std::uint64_t target, int num_threads) {
  const int threads = ResolveThreads(num_threads);
  const std::uint64_t size = CountPrunable(trie);
  if (size <= target) return trie;
  const std::uint64_t longer = size - CountWordsWithMass(trie);
  if (longer == 0) return trie;
  NgramScores scores = RelativeEntropyScores(trie, threads);
  RaiseToExtensions(trie, threads, &scores);
  const double threshold = ThresholdAbove(scores, std::min(longer, size - target));
  return Keep(std::move(trie), MarkFrom(scores, threshold), threads);
}

Trie PruneByEstimatedCount(Trie trie, const std::vector<std::uint64_t>& min_counts,
                           int num_threads) {
  if (min_counts.size() != static_cast<std::size_t>(trie.order())) {
    throw ValueError(StrCat("prune: min_counts has ", min_counts.size(), " entries; the LM needs ",
                            trie.order(), ", one for each order"));
  }
  const int threads = ResolveThreads(num_threads);
  const double total = 1.0 / SmallestUnigramGap(trie);
  NgramScores counts = NgramProbs(trie, threads);
  FreeMemory(&counts[0]);
  for (int m = 1; m < trie.order(); ++m) {
    // A cutoff of 1 keeps all: discounted counts of 1 come back as less than 1.
    const double cutoff = min_counts[m] <= 1 ? 0.0 : static_cast<double>(min_counts[m]);
    for (double& count : counts[m]) count = count * total < cutoff ? 0.0 : 1.0;
  }
  RaiseToExtensions(trie, threads, &counts);
  return Keep(std::move(trie), MarkFrom(counts, 0.5), threads);
}

Trie PruneByVocabulary(Trie trie, Span<TokenId> kept, int num_threads) {
  const Vocabulary& vocabulary = trie.vocabulary;
  std::vector<std::uint8_t> known(vocabulary.num_symbols(), 0);
  known[vocabulary.bos] = known[vocabulary.eos] = known[vocabulary.unk] = 1;
  for (const TokenId id : kept) {
    if (id < 0 || !vocabulary.is_token(static_cast<Symbol>(id))) {
      throw ValueError(StrCat("prune by vocabulary: token id ", id, "; expected 0..",
                              vocabulary.vocab_size - 1));
    }
    known[static_cast<Symbol>(id)] = 1;
  }
  std::vector<float>& unigrams = trie.levels[0].log_prob;
  for (Symbol symbol = 0; symbol < known.size(); ++symbol) {
    if (!known[symbol] && HasMass(unigrams[symbol])) unigrams[symbol] = -kUnseenCost;
  }
  ScaleToOne(0, unigrams.size(), &unigrams);
  std::vector<Marks> stays = {Marks(known.begin(), known.end())};
  for (int m = 1; m < trie.order(); ++m) {
    const ChildLists lists = ChildListsOfLevel(trie.levels, m);
    stays.emplace_back(lists.word.size(), 0);
    InterruptCounter interrupts;
    for (std::size_t context = 0; context < lists.num_contexts(); ++context) {
      interrupts.Count();
      for (std::uint32_t i = lists.child_begin[context]; i < lists.child_begin[context + 1]; ++i) {
        stays[m][i] = stays[m - 1][context] && known[lists.word[i]];
      }
    }
  }
  trie = KeepNodes(std::move(trie), stays);
  ScaleCompleteContexts(&trie);
  AssignBackoffWeights(ResolveThreads(num_threads), &trie);
  return trie;
}

}  // namespace lattice_bpd
