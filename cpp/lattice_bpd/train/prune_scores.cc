#include "lattice_bpd/train/prune_scores.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/lm/suffix_links.h"
#include "lattice_bpd/train/context_mass.h"

namespace lattice_bpd {
namespace {

// The cost of taking one n-gram out of its context.
double RemovalCost(double context_prob, const ContextMass& mass, double prob, double lower_prob,
                   double log_prob, double lower_log_prob) {
  const double log_alpha = std::log(mass.left / mass.lower_left);
  const double log_alpha_after = std::log((mass.left + prob) / (mass.lower_left + lower_prob));
  const double change_here = prob * (lower_log_prob + log_alpha_after - log_prob);
  const double change_below = mass.left * (log_alpha_after - log_alpha);
  return -context_prob * (change_here + change_below);
}

std::vector<double> UnigramProbs(const Trie& trie) {
  const std::vector<float>& log_prob = trie.levels[0].log_prob;
  std::vector<double> probs(log_prob.begin(), log_prob.end());
  probs[trie.vocabulary.bos] = log_prob[trie.vocabulary.eos];
  for (double& prob : probs) prob = std::exp(prob);
  return probs;
}

}  // namespace

NgramScores NgramProbs(const Trie& trie, int num_threads) {
  NgramScores probs(trie.levels.size());
  probs[0] = UnigramProbs(trie);
  for (int m = 1; m < trie.order(); ++m) {
    const ChildLists lists = ChildListsOfLevel(trie.levels, m);
    const std::vector<float>& log_prob = trie.levels[m].log_prob;
    probs[m].resize(log_prob.size());
    RunOverContexts(lists.child_begin, num_threads, [&](std::size_t first, std::size_t last) {
      for (std::size_t context = first; context < last; ++context) {
        for (std::uint32_t i = lists.child_begin[context]; i < lists.child_begin[context + 1];
             ++i) {
          probs[m][i] = probs[m - 1][context] * std::exp(static_cast<double>(log_prob[i]));
        }
      }
    });
  }
  return probs;
}

NgramScores RelativeEntropyScores(const Trie& trie, int num_threads) {
  return RelativeEntropyScores(trie, NgramProbs(trie, num_threads), num_threads);
}

NgramScores RelativeEntropyScores(const Trie& trie, NgramScores probs, int num_threads) {
  NgramScores scores = std::move(probs);
  ContextMasses masses(num_threads, trie);
  std::vector<double> context_probs = std::move(scores[0]);
  FreeMemory(&scores[0]);
  for (int m = 1; m < trie.order(); ++m) {
    masses.Advance();
    const ChildLists lists = ChildListsOfLevel(trie.levels, m);
    const std::vector<float>& log_prob = trie.levels[m].log_prob;
    const std::vector<float>& lower_log_prob = trie.levels[m - 1].log_prob;
    std::vector<double> costs(log_prob.size());
    RunOverContexts(lists.child_begin, num_threads, [&](std::size_t first, std::size_t last) {
      for (std::size_t context = first; context < last; ++context) {
        const std::uint32_t begin = lists.child_begin[context];
        const std::uint32_t end = lists.child_begin[context + 1];
        if (begin == end) continue;
        const ContextMass mass = masses.Of(static_cast<std::uint32_t>(context));
        for (std::uint32_t i = begin; i < end; ++i) {
          const std::uint32_t suffix = masses.links()[i];
          const double prob = std::exp(static_cast<double>(log_prob[i]));
          costs[i] = RemovalCost(context_probs[context], mass, prob, masses.below()[suffix],
                                 log_prob[i], lower_log_prob[suffix]);
        }
      }
    });
    context_probs = std::move(scores[m]);
    scores[m] = std::move(costs);
  }
  return scores;
}

void RaiseToExtensions(const Trie& trie, int num_threads, NgramScores* scores) {
  std::vector<std::vector<std::uint32_t>> links(trie.levels.size());
  for (int m = 1; m < trie.order(); ++m) {
    links[m] = LinkLevel(trie.levels, m, links[m - 1], num_threads);
  }
  for (int m = trie.order() - 1; m > 1; --m) {
    const ChildLists lists = ChildListsOfLevel(trie.levels, m);
    const std::vector<double>& extensions = (*scores)[m];
    std::vector<double>& parts = (*scores)[m - 1];
    InterruptCounter interrupts;
    for (std::size_t context = 0; context < lists.num_contexts(); ++context) {
      interrupts.Count();
      for (std::uint32_t i = lists.child_begin[context]; i < lists.child_begin[context + 1]; ++i) {
        parts[context] = std::max(parts[context], extensions[i]);
        parts[links[m][i]] = std::max(parts[links[m][i]], extensions[i]);
      }
    }
    FreeMemory(&links[m]);
  }
}

}  // namespace lattice_bpd
