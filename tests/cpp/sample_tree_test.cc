// Sampled trees: independent children, shared noise; samples of single tokens. The conditional
// probabilities of nodes are compared with all paths in test_transitions.py.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/sample_tree.h"
#include "lattice_bpd/lattice/sample_token.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

using TokenIds = std::vector<TokenId>;

Sausage Lattice(unsigned seed) {
  std::mt19937 random(seed);
  const auto sample = [&random] { return static_cast<float>(random() % 9) / 4.0f; };
  Sausage sausage;
  sausage.AddSlot(TokenIds{2, 0, 1}, std::vector<float>{sample(), sample(), sample()});
  sausage.AddSlot(TokenIds{1, 2}, std::vector<float>{sample(), sample()});
  sausage.AddSlot(TokenIds{0, 2, 1}, std::vector<float>{sample(), sample(), sample()});
  return sausage;
}

// The probability of every prefix, from the list of all paths; that of the empty one is 1.
std::map<TokenIds, double> ListMasses(const Sausage& lattice, const BackoffLm* lm,
                                      const LmState& start, double alpha) {
  const DraftList all = FindDrafts(lattice, lm, start, {kMaxDrafts, alpha, Engine::kOpenFst});
  std::map<TokenIds, double> masses;
  double total = 0.0;
  for (const double score : all.scores) total += std::exp(score);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto first = all.token_ids.begin() + static_cast<std::ptrdiff_t>(i * all.num_slots);
    for (std::size_t length = 0; length <= all.num_slots; ++length) {
      masses[TokenIds(first, first + static_cast<std::ptrdiff_t>(length))] +=
          std::exp(all.scores[i]) / total;
    }
  }
  return masses;
}

TokenIds PrefixOf(const SampledTree& tree, std::int32_t node) {
  TokenIds tokens;
  for (; node >= 0; node = tree.nodes[node].parent) {
    tokens.insert(tokens.begin(), tree.nodes[node].token_id);
  }
  return tokens;
}

TokenIds WithToken(TokenIds prefix, TokenId token) {
  prefix.push_back(token);
  return prefix;
}

SampledTree Sample(const Sausage& lattice, const BackoffLm* lm, const LmState& start,
                   const SampleOptions& options) {
  SampledTree tree;
  SampleTree(lattice, lm, start, options, &tree);
  return tree;
}

TEST_CASE("the children of two nodes are sampled independently") {
  // Two slots of two equal tokens: each node's first child is either token, whatever the other's.
  Sausage lattice;
  lattice.AddSlot(TokenIds{0, 1}, std::vector<float>{1.0f, 1.0f});
  lattice.AddSlot(TokenIds{0, 1}, std::vector<float>{2.0f, 2.0f});
  constexpr int kSamples = 4000;
  int alike = 0;
  for (int key = 0; key < kSamples; ++key) {
    const SampledTree tree =
        Sample(lattice, nullptr, {},
               {1.0, 6, NoiseUse::kIndependent, 1.0, static_cast<std::uint64_t>(key)});
    REQUIRE(tree.nodes.size() == 6);
    std::map<std::int32_t, TokenId> first_child;  // by parent
    for (const TreeNode& node : tree.nodes) first_child.emplace(node.parent, node.token_id);
    REQUIRE(first_child.size() == 3);
    std::vector<TokenId> below;
    for (const auto& [parent, token] : first_child) {
      if (parent >= 0) below.push_back(token);
    }
    alike += below[0] == below[1];
  }
  CHECK(alike > kSamples * 0.45);  // 0.5, more than 6 standard deviations off
  CHECK(alike < kSamples * 0.55);
}

TEST_CASE("shared noise: a token's share is softmax(sharpness * (ln q + noise))") {
  const auto lm = ExampleLm();
  const LmState start = lm->StateOfContext(TokenIds{0}, true);
  const Sausage lattice = Lattice(5);
  const auto masses = ListMasses(lattice, lm.get(), start, 0.75);
  const SampledTree tree =
      Sample(lattice, lm.get(), start, {0.75, 100, NoiseUse::kShared, 1.5, 77, 40});
  REQUIRE(tree.nodes.size() == 27);
  double last = 0.0;
  for (std::int32_t node = 0; node < 27; ++node) {
    const TokenIds prefix = PrefixOf(tree, node);
    double wanted = 0.0;
    for (std::size_t slot = 0; slot < prefix.size(); ++slot) {
      const TokenIds before(prefix.begin(), prefix.begin() + static_cast<std::ptrdiff_t>(slot));
      const NoiseRow noise(77, 40 + slot);
      double total = 0.0;
      double own = 0.0;
      for (TokenId token = 0; token < 3; ++token) {
        const auto at = masses.find(WithToken(before, token));
        if (at == masses.end()) continue;
        const double share =
            std::exp(1.5 * (std::log(at->second / masses.at(before)) + noise.Gumbel(token)));
        total += share;
        if (token == prefix[slot]) own = share;
      }
      wanted += std::log(own / total);
    }
    CHECK(tree.nodes[node].log_prob == doctest::Approx(wanted).epsilon(1e-5));
    CHECK(tree.nodes[node].log_prob <= last + 1e-12);
    last = tree.nodes[node].log_prob;
  }
}

TEST_CASE("SampleToken: the argmax of logits and noise") {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(500);
  for (int trial = 0; trial < 200; ++trial) {
    for (float& logit : logits) logit = normal(random);
    const NoiseRow noise(9, static_cast<std::uint64_t>(trial));
    double best = -1e300;
    TokenId wanted = -1;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double value = 0.7 * static_cast<double>(logits[i]) + noise.Gumbel(i);
      if (value > best) {
        best = value;
        wanted = static_cast<TokenId>(i);
      }
    }
    CHECK(SampleToken(logits, 0.7, noise) == wanted);
  }
  const std::vector<float> none(3, -std::numeric_limits<float>::infinity());
  CHECK_THROWS_WITH_AS(SampleToken(none, 1.0, NoiseRow(1, 1)), doctest::Contains("none of them"),
                       ValueError);
  const std::vector<float> nan = {0.0f, std::nanf("")};
  CHECK_THROWS_WITH_AS(SampleToken(nan, 1.0, NoiseRow(1, 1)), doctest::Contains("token 1"),
                       ValueError);
}

}  // namespace
}  // namespace lattice_bpd
