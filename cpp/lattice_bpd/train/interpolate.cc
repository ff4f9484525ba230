#include "lattice_bpd/train/interpolate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/train/backoff_weights.h"
#include "lattice_bpd/train/evaluate_lm.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kMaxParts = 64;  // of the union, by first symbol; small ones balance threads
constexpr int kMaxRounds = 500;
constexpr double kConverged = 1e-5;

void CheckVocabularies(const LmList& lms) {
  if (lms.empty()) throw ValueError("interpolate: no LM; expected one at least");
  const Vocabulary& first = lms[0]->vocabulary();
  for (std::size_t i = 1; i < lms.size(); ++i) {
    const Vocabulary& other = lms[i]->vocabulary();
    if (other.vocab_size == first.vocab_size && other.bos == first.bos && other.eos == first.eos &&
        other.unk == first.unk) {
      if (!other.words || !first.words || other.words->lines() == first.words->lines()) continue;
      throw ValueError(StrCat("interpolate: LM ", i, " has other words than LM 0",
                              "; expected one vocabulary: train both with the same words"));
    }
    throw ValueError(StrCat("interpolate: LM ", i, " has ", other.vocab_size, " token ids, <s> ",
                            other.bos, ", </s> ", other.eos, "; LM 0 has ", first.vocab_size, ", ",
                            first.bos, ", ", first.eos,
                            "; expected one vocabulary: train both with the same ids"));
  }
}

void NormalizeWeights(std::size_t num_lms, std::vector<double>* weights) {
  if (weights->size() != num_lms) {
    throw ValueError(StrCat("interpolate: ", weights->size(), " weights for ", num_lms,
                            " LMs; expected one each"));
  }
  const double sum = std::accumulate(weights->begin(), weights->end(), 0.0);
  for (double& weight : *weights) {
    if (!(weight >= 0.0) || !(sum > 0.0) || !std::isfinite(sum)) {
      throw ValueError(StrCat("interpolate: weight ", weight, " and sum ", sum,
                              "; expected weights of 0 or above, not all 0"));
    }
    weight /= sum;
  }
}

// Token ids are <unk> to the mixture that are <unk> to all LMs.
Vocabulary MixedVocabulary(const LmList& lms) {
  Vocabulary vocabulary = lms[0]->vocabulary();
  if (vocabulary.unlisted == nullptr) return vocabulary;
  std::vector<std::uint8_t> unlisted = *vocabulary.unlisted;
  for (const auto& lm : lms) {
    if (lm->vocabulary().unlisted == nullptr) unlisted.clear();
    for (std::size_t i = 0; i < unlisted.size(); ++i)
      unlisted[i] &= (*lm->vocabulary().unlisted)[i];
  }
  vocabulary.unlisted = nullptr;
  if (!unlisted.empty()) {
    vocabulary.unlisted = std::make_shared<const std::vector<std::uint8_t>>(std::move(unlisted));
  }
  return vocabulary;
}

// The union's n-grams of order 2 and up whose first symbol lies in a range, in lexicographic order.
class UnionBuilder {
 public:
  UnionBuilder(const LmList& lms, const Vocabulary& vocabulary, const std::vector<double>& weights,
               int order)
      : levels(static_cast<std::size_t>(order)),
        lms_(lms),
        vocabulary_(vocabulary),
        weights_(weights),
        states_(static_cast<std::size_t>(order) + 1, std::vector<LmState>(lms.size())) {}

  void AddSymbol(Symbol symbol) {
    for (std::size_t i = 0; i < lms_.size(); ++i) {
      const bool is_unlisted = vocabulary_.is_unlisted(symbol);  // its n-grams are those of <unk>
      states_[1][i] = is_unlisted ? LmState{} : lms_[i]->Query(LmState{}, symbol).next;
    }
    AddChildren(1);
  }

  std::vector<TrieLevel> levels;  // child_begin: where each node's children end

 private:
  // Of the history of `length` symbols whose states are states_[length].
  void AddChildren(std::size_t length) {
    if (length == levels.size()) return;
    for (const Symbol word : ChildWords(length)) AddNgram(length, word);
    const auto end = static_cast<std::uint32_t>(levels[length].size());
    levels[length - 1].child_begin.push_back(end);
  }

  void AddNgram(std::size_t length, Symbol word) {
    double prob = 0.0;
    for (std::size_t i = 0; i < lms_.size(); ++i) {
      const LmStep step = lms_[i]->Query(states_[length][i], word);
      prob += weights_[i] * std::exp(step.TotalLogProb());
      states_[length + 1][i] = step.next;
    }
    levels[length].word.push_back(word);
    levels[length].log_prob.push_back(
        prob > 0.0 ? std::min(0.0f, static_cast<float>(std::log(prob))) : -kUnseenCost);
    AddChildren(length + 1);
  }

  // The words that follow the history in any LM, sorted.
  std::vector<Symbol> ChildWords(std::size_t length) const {
    std::vector<Symbol> words;
    for (std::size_t i = 0; i < lms_.size(); ++i) {
      const LmState& state = states_[length][i];
      if (state.length != length) continue;  // the LM does not know all of the history
      const auto [first, last] = lms_[i]->Children(state.length, state.nodes[length - 1]);
      const std::size_t middle = words.size();
      for (std::uint32_t node = first; node < last; ++node) {
        words.push_back(lms_[i]->levels()[length].Key(node));
      }
      std::inplace_merge(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(middle),
                         words.end());
    }
    words.erase(std::unique(words.begin(), words.end()), words.end());
    return words;
  }

  const LmList& lms_;
  const Vocabulary& vocabulary_;
  const std::vector<double>& weights_;
  std::vector<std::vector<LmState>> states_;  // [length][LM]
};

void MixUnigrams(const LmList& lms, const std::vector<double>& weights, TrieLevel* level) {
  const Vocabulary& vocabulary = lms[0]->vocabulary();
  for (Symbol symbol = 0; symbol < vocabulary.num_symbols(); ++symbol) {
    double prob = 0.0;
    for (std::size_t i = 0; i < lms.size(); ++i) {
      const float log_prob = lms[i]->levels()[0].LogProb(symbol);
      if (HasMass(log_prob)) prob += weights[i] * std::exp(double{log_prob});
    }
    const float none = symbol == vocabulary.bos ? kNeverLogProb : -kUnseenCost;
    level->log_prob.push_back(prob > 0.0 ? std::min(0.0f, static_cast<float>(std::log(prob)))
                                         : none);
  }
}

// Appends a part's levels; its child ends count from the part's own first child.
void Append(const std::vector<TrieLevel>& part, std::vector<TrieLevel>* levels) {
  for (std::size_t m = 0; m < levels->size(); ++m) {
    TrieLevel& level = (*levels)[m];
    if (m + 1 < levels->size()) {
      const auto base = static_cast<std::uint32_t>((*levels)[m + 1].size());
      for (const std::uint32_t end : part[m].child_begin) level.child_begin.push_back(base + end);
    }
    if (m == 0) continue;
    level.word.insert(level.word.end(), part[m].word.begin(), part[m].word.end());
    level.log_prob.insert(level.log_prob.end(), part[m].log_prob.begin(), part[m].log_prob.end());
  }
}

std::vector<std::size_t> SplitSymbols(const LmList& lms) {
  std::vector<std::uint64_t> weight(lms[0]->vocabulary().num_symbols() + 1, 0);
  for (Symbol symbol = 0; symbol + 1 < weight.size(); ++symbol) {
    weight[symbol + 1] = weight[symbol] + 1;
    for (const auto& lm : lms) {
      if (lm->order() < 2) continue;
      const auto [first, last] = lm->Children(1, symbol);
      weight[symbol + 1] += last - first;
    }
  }
  return SplitByWeight(weight, kMaxParts);
}

}  // namespace

Trie InterpolateLms(const LmList& all_lms, std::vector<double> all_weights, int num_threads) {
  CheckVocabularies(all_lms);
  NormalizeWeights(all_lms.size(), &all_weights);
  const int threads = ResolveThreads(num_threads);
  LmList lms;
  std::vector<double> weights;
  int order = 1;
  for (std::size_t i = 0; i < all_lms.size(); ++i) {
    if (all_weights[i] == 0.0) continue;
    lms.push_back(all_lms[i]);
    weights.push_back(all_weights[i]);
    order = std::max(order, all_lms[i]->order());
  }
  const Vocabulary vocabulary = MixedVocabulary(lms);
  const std::vector<std::size_t> bounds = SplitSymbols(lms);
  std::vector<std::vector<TrieLevel>> parts(bounds.size() - 1);
  RunParallel(parts.size(), threads, [&](std::size_t part) {
    UnionBuilder builder(lms, vocabulary, weights, order);
    for (std::size_t symbol = bounds[part]; symbol < bounds[part + 1]; ++symbol) {
      CheckInterrupted();
      builder.AddSymbol(static_cast<Symbol>(symbol));
    }
    parts[part] = std::move(builder.levels);
  });
  Trie trie{vocabulary, std::vector<TrieLevel>(static_cast<std::size_t>(order))};
  MixUnigrams(lms, weights, &trie.levels[0]);
  for (int m = 0; m + 1 < order; ++m) trie.levels[m].child_begin = {0};
  for (std::vector<TrieLevel>& part : parts) {
    Append(part, &trie.levels);
    part = {};
  }
  AssignBackoffWeights(threads, &trie);
  return trie;
}

std::vector<double> TuneWeights(const LmList& lms, const TokenSequences& heldout, int num_threads) {
  CheckVocabularies(lms);
  std::vector<std::vector<double>> probs;
  for (const auto& lm : lms) probs.push_back(ProbsOfText(*lm, heldout, num_threads));
  std::vector<double> weights(lms.size(), 1.0 / static_cast<double>(lms.size()));
  double moved = 1.0;
  for (int round = 0; round < kMaxRounds && moved >= kConverged; ++round) {
    std::vector<double> shares(lms.size(), 0.0);
    double known = 0.0;
    InterruptCounter interrupts;
    for (std::size_t t = 0; t < probs[0].size(); ++t) {
      interrupts.Count();
      double mixture = 0.0;
      for (std::size_t i = 0; i < lms.size(); ++i) mixture += weights[i] * probs[i][t];
      if (mixture == 0.0) continue;
      ++known;
      for (std::size_t i = 0; i < lms.size(); ++i) shares[i] += weights[i] * probs[i][t] / mixture;
    }
    if (known == 0.0) {
      throw ValueError(
          "interpolate: no LM knows any token of the held-out text; is it of the "
          "same vocabulary?");
    }
    moved = 0.0;
    for (std::size_t i = 0; i < lms.size(); ++i) {
      moved = std::max(moved, std::abs(shares[i] / known - weights[i]));
      weights[i] = shares[i] / known;
    }
  }
  return weights;
}

}  // namespace lattice_bpd
