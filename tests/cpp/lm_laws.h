// Laws that every backoff LM must obey, for tests of whatever makes one.
#ifndef LATTICE_BPD_TESTS_CPP_LM_LAWS_H_
#define LATTICE_BPD_TESTS_CPP_LM_LAWS_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/train/estimate.h"

namespace lattice_bpd {

using Sequences = std::vector<std::vector<TokenId>>;

inline Trie TrainOn(const Sequences& sequences, const Vocabulary& vocabulary,
                    const EstimateOptions& options, TrainReport* report = nullptr) {
  std::vector<TokenId> ids;
  std::vector<std::int64_t> offsets = {0};
  for (const auto& sequence : sequences) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  return TrainLm({ids, offsets}, vocabulary, options, report);
}

// Sentences of 0 .. 11 tokens, half of them token 0, so that n-grams repeat.
inline Sequences RandomCorpus(int vocab_size, std::mt19937* random) {
  Sequences sequences(1 + (*random)() % 60);
  for (auto& sequence : sequences) {
    sequence.resize((*random)() % 12);
    for (TokenId& id : sequence) {
      id = static_cast<TokenId>((*random)() % vocab_size * ((*random)() % 2));
    }
  }
  sequences[0].push_back(0);
  return sequences;
}

// visit(history, state) for every history that the LM knows, the empty one first.
inline void ForEachHistory(
    const BackoffLm& lm,
    const std::function<void(const std::vector<Symbol>&, const LmState&)>& visit) {
  std::vector<std::pair<std::vector<Symbol>, LmState>> open = {{{}, {}}};
  while (!open.empty()) {
    const auto [history, state] = open.back();
    open.pop_back();
    visit(history, state);
    if (static_cast<int>(state.length) + 1 >= lm.order()) continue;
    const auto [first, last] =
        lm.Children(state.length, state.length == 0 ? 0 : state.nodes[state.length - 1]);
    for (std::uint32_t node = first; node < last; ++node) {
      std::vector<Symbol> longer = history;
      longer.push_back(lm.levels()[state.length].Key(node));
      open.emplace_back(longer, lm.Query(state, longer.back()).next);
    }
  }
}

inline double Prob(const BackoffLm& lm, const std::vector<Symbol>& history, Symbol word) {
  return std::exp(lm.Query(lm.StateOf(history), word).TotalLogProb());
}

// The largest |1 - sum over all symbols of P(w | history)| over every history of the LM.
inline double WorstSum(const BackoffLm& lm) {
  double worst = 0.0;
  ForEachHistory(lm, [&](const std::vector<Symbol>&, const LmState& state) {
    double sum = 0.0;
    for (Symbol word = 0; word < lm.vocabulary().num_symbols(); ++word) {
      sum += std::exp(lm.Query(state, word).TotalLogProb());
    }
    worst = std::max(worst, std::abs(1.0 - sum));
  });
  return worst;
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_CPP_LM_LAWS_H_
