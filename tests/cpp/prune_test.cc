// Pruning of finished LMs: a step with its arithmetic, and laws on random corpora.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/unpack.h"
#include "lattice_bpd/train/context_mass.h"
#include "lattice_bpd/train/prune.h"
#include "lattice_bpd/train/prune_scores.h"
#include "lm_laws.h"

namespace lattice_bpd {
namespace {

constexpr int kThreads = 2;

// a b / a b / a c / b a by Katz with K = 2 (train_test.cc has the discounts):
//   P(a) = 4/12, P(b) = 3/12, P(c) = 1/12, P(</s>) = 4/12;   P(</s> | c) = 0.5
Trie Worked() {
  EstimateOptions options;
  options.order = 2;
  options.katz_k = 2;
  return TrainOn({{0, 1}, {0, 1}, {0, 2}, {1, 0}}, MakeVocabulary(3, {}), options);
}
constexpr Symbol kC = 2, kEos = 4;

bool HasBigram(const Trie& trie, Symbol first, Symbol second) {
  if (trie.order() < 2) return false;
  const std::vector<std::uint32_t>& begin = trie.levels[0].child_begin;
  const std::vector<Symbol>& word = trie.levels[1].word;
  return std::count(word.begin() + begin[first], word.begin() + begin[first + 1], second) == 1;
}

Trie RandomTrie(unsigned seed, int order) {
  std::mt19937 random(seed);
  const int vocab_size = 2 + static_cast<int>(random() % 10);
  EstimateOptions options;
  options.order = order;
  options.smoothing = static_cast<Smoothing>(random() % 5);
  const Sequences sequences = RandomCorpus(vocab_size, &random);
  return TrainOn(sequences, MakeVocabulary(vocab_size + 2, {}), options);
}

std::shared_ptr<const BackoffLm> Pack(const Trie& trie) { return BackoffLm::FromTrie(trie); }

// Every n-gram of `lm` has the probability that `whole` gives it.
void CheckProbsOfListed(const BackoffLm& lm, const BackoffLm& whole) {
  ForEachHistory(lm, [&](const std::vector<Symbol>& history, const LmState& state) {
    if (state.length == 0) return;
    const PackedLevel& level = lm.levels()[state.length];
    const auto [first, last] = lm.Children(state.length, state.nodes[state.length - 1]);
    for (std::uint32_t node = first; node < last; ++node) {
      const LmStep step = whole.Query(whole.StateOf(history), level.Key(node));
      CHECK(step.TotalLogProb() == level.LogProb(node));
    }
  });
}

}  // namespace

TEST_CASE("one pruning step by hand") {
  // h = c stores </s> alone: left = 1 - 1/2, lower = 1 - 4/12, a = (1/2) / (2/3) = 3/4.
  // Without it a' = (1/2 + 1/2) / (2/3 + 1/3) = 1. With p(h) = 1/12:
  //   D = -1/12 { 1/2 [ln 1/3 + ln 1 - ln 1/2] + 1/2 [ln 1 - ln 3/4] } = ln(9/8) / 24
  const double cost = std::log(9.0 / 8) / 24;
  const Trie trie = Worked();
  const std::uint32_t node = trie.levels[0].child_begin[kC];
  const NgramScores scores = RelativeEntropyScores(trie, kThreads);
  CHECK(scores[1][node] == doctest::Approx(cost).epsilon(1e-5));
  CHECK(HasBigram(PruneByEntropy(trie, 0.999 * std::expm1(cost), kThreads), kC, kEos));
  const Trie pruned = PruneByEntropy(trie, 1.001 * std::expm1(cost), kThreads);
  CHECK_FALSE(HasBigram(pruned, kC, kEos));
  CHECK(Prob(*Pack(pruned), {kC}, kEos) == doctest::Approx(1.0 * 4 / 12));
}

TEST_CASE("an n-gram that costs exactly the threshold stays") {
  const Trie trie = Worked();
  const double cost = RelativeEntropyScores(trie, kThreads)[1][trie.levels[0].child_begin[kC]];
  double theta = std::expm1(cost);  // of which log1p is the cost again, to the last bit
  for (int i = 0; i < 64 && std::log1p(theta) != cost; ++i) {
    theta = std::nextafter(theta, std::log1p(theta) < cost ? 1.0 : 0.0);
  }
  REQUIRE(std::log1p(theta) == cost);
  CHECK(HasBigram(PruneByEntropy(trie, theta, kThreads), kC, kEos));
  while (std::log1p(theta) == cost) theta = std::nextafter(theta, 1.0);
  CHECK_FALSE(HasBigram(PruneByEntropy(trie, theta, kThreads), kC, kEos));
}

TEST_CASE("counts come back from relative frequencies") {
  // One occurrence is 3/12 - 1/12: N is 6, half the 12 events, since no count is 2.
  const Trie trie = Worked();
  const Trie pruned = PruneByEstimatedCount(trie, {1, 2}, kThreads);
  // p(h) P(w | h) 6: a b 4/12 * .1875 * 6 = .375 .. <s> a 4/12 * .749 * 6 = 1.5; all below 2.
  CHECK(pruned.order() == 1);
  CHECK(PruneByEstimatedCount(trie, {1, 1}, kThreads).levels[1].size() == 8);
  CHECK_THROWS_WITH_AS(PruneByEstimatedCount(trie, {1}, kThreads), doctest::Contains("1 entries"),
                       ValueError);
}

TEST_CASE("by vocabulary: words that go leave their mass to the others") {
  const std::vector<TokenId> kept = {0, 1};
  const Trie pruned = PruneByVocabulary(Worked(), kept, kThreads);
  CHECK_FALSE(HasBigram(pruned, 0, kC));
  CHECK(pruned.levels[0].log_prob[kC] == -kUnseenCost);
  const auto lm = Pack(pruned);
  CHECK(Prob(*lm, {}, 0) == doctest::Approx(4.0 / 11));
  CHECK(Prob(*lm, {0}, 1) == doctest::Approx(0.375 * 2 / 4));  // as it was
  CHECK(WorstSum(*lm) < 1e-6);
  CHECK_THROWS_AS(PruneByVocabulary(Worked(), std::vector<TokenId>{3}, kThreads), ValueError);
}

TEST_CASE("laws: at most N n-grams, sums of 1, probabilities of what stays unchanged") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Trie trie = RandomTrie(seed, 2 + static_cast<int>(seed % 4));
    std::mt19937 random(seed);
    const std::uint64_t size = CountPrunable(trie);
    const std::uint64_t target = random() % (size + 2);
    const Trie to_size = PruneToSize(trie, target, kThreads);
    CHECK(CountPrunable(to_size) <= std::max(target, CountWordsWithMass(trie)));
    const auto whole = Pack(trie);
    const Trie by_vocabulary = PruneByVocabulary(trie, std::vector<TokenId>{0, 1}, kThreads);
    CHECK(WorstSum(*Pack(by_vocabulary)) < 1e-5);
    for (const Trie& pruned :
         {to_size, PruneByEntropy(trie, std::pow(10.0, -1.0 - random() % 6), kThreads),
          PruneByEntropy(trie, 0.0, kThreads)}) {
      const auto lm = Pack(pruned);
      CHECK(WorstSum(*lm) < 1e-5);
      CheckProbsOfListed(*lm, *whole);
    }
  }
}

}  // namespace lattice_bpd
