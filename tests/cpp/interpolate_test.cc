// Interpolated LMs, weights by EM, and the scores of texts.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/train/context_mass.h"
#include "lattice_bpd/train/evaluate_lm.h"
#include "lattice_bpd/train/interpolate.h"
#include "lm_laws.h"

namespace lattice_bpd {
namespace {

constexpr int kThreads = 2;

std::shared_ptr<const BackoffLm> RandomLm(std::mt19937* random, int vocab_size, int order,
                                          Smoothing smoothing) {
  EstimateOptions options;
  options.order = order;
  options.smoothing = smoothing;
  const Sequences sequences = RandomCorpus(vocab_size, random);
  return BackoffLm::FromTrie(TrainOn(sequences, MakeVocabulary(9, {}), options));
}

// Unigram LMs over a, b and </s>: P(a) = 2/4 and 1/4, P(b) = 1/4 and 2/4, P(</s>) = 1/4.
LmList TwoUnigramLms() {
  EstimateOptions options;
  options.order = 1;
  const Vocabulary vocabulary = MakeVocabulary(3, {});
  return {BackoffLm::FromTrie(TrainOn({{0, 0, 1}}, vocabulary, options)),
          BackoffLm::FromTrie(TrainOn({{0, 1, 1}}, vocabulary, options))};
}

struct Text {
  std::vector<TokenId> ids;
  std::vector<std::int64_t> offsets;
  TokenSequences view() const { return {ids, offsets}; }
};

}  // namespace

TEST_CASE("EM by hand: held-out text of a alone, and one that is half and half") {
  const LmList lms = TwoUnigramLms();
  // a </s>: the likelihood of weight w is (w 2/4 + (1 - w) 1/4) / 4, largest at w = 1.
  CHECK(TuneWeights(lms, Text{{0}, {0, 1}}.view(), kThreads)[0] > 0.99);
  // a b: (w 2/4 + (1 - w) 1/4)(w 1/4 + (1 - w) 2/4), largest at w = 1/2.
  CHECK(TuneWeights(lms, Text{{0, 1}, {0, 2}}.view(), kThreads)[0] == doctest::Approx(0.5));
  CHECK_THROWS_AS(TuneWeights(lms, Text{{9}, {0, 1}}.view(), kThreads), ValueError);
}

TEST_CASE("laws: listed n-grams have the mixture's probability, sums are 1") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    LmList lms;
    std::vector<double> weights;
    for (unsigned i = 0; i < 1 + seed % 3; ++i) {
      lms.push_back(RandomLm(&random, 2 + static_cast<int>(random() % 7),
                             1 + static_cast<int>(random() % 4),
                             static_cast<Smoothing>(random() % 5)));
      weights.push_back(1.0 / (1 + i));
    }
    const double sum = weights.size() == 1 ? 1.0 : weights.size() == 2 ? 1.5 : 11.0 / 6;
    const auto mixed = BackoffLm::FromTrie(InterpolateLms(lms, weights, kThreads));
    CHECK(WorstSum(*mixed) < 1e-5);
    ForEachHistory(*mixed, [&](const std::vector<Symbol>& history, const LmState& state) {
      const PackedLevel& level = mixed->levels()[state.length];
      const auto [first, last] =
          mixed->Children(state.length, state.length == 0 ? 0 : state.nodes[state.length - 1]);
      for (std::uint32_t node = first; node < last; ++node) {
        double prob = 0.0;
        for (std::size_t i = 0; i < lms.size(); ++i) {
          prob += weights[i] / sum * Prob(*lms[i], history, level.Key(node));
        }
        CHECK(std::exp(level.LogProb(node)) == doctest::Approx(prob).epsilon(1e-5));
      }
    });
  }
}

TEST_CASE("the score of a text by hand") {
  const auto lm = TwoUnigramLms()[0];
  const Text text{{0, 1, 2, 0}, {0, 3, 4}};  // a b c / a, where c is unknown
  const TextScore score = EvaluateLm(*lm, text.view(), true, true, 1);
  CHECK(score.tokens == 6);
  CHECK(score.unknown == 1);
  // a twice, b, </s> twice
  CHECK(score.log_prob == doctest::Approx(2 * std::log(0.5) + 3 * std::log(0.25)));
  CHECK(score.hits == std::vector<std::uint64_t>{5});
  CHECK(EvaluateLm(*lm, text.view(), true, false, 1).tokens == 4);
}

}  // namespace lattice_bpd
