// Interpolated LMs; test_cli_ngram.py has weights by EM.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "lattice_bpd/train/context_mass.h"
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

}  // namespace

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

}  // namespace lattice_bpd
