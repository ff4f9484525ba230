// Sampled trees: exact conditional probabilities, samples without replacement, shared noise; and
// samples of single tokens.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/sample_batch.h"
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

TEST_CASE("every node's distribution is the exact conditional of the joint one") {
  const auto lm = ExampleLm();
  const LmState start = lm->StateOfContext(TokenIds{0}, true);
  for (unsigned seed = 0; seed < 6; ++seed) {
    const Sausage lattice = Lattice(seed);
    const auto masses = ListMasses(lattice, lm.get(), start, 0.75);
    const SampledTree tree =
        Sample(lattice, lm.get(), start, {0.75, 100, NoiseUse::kIndependent, 1.0, seed});
    REQUIRE(tree.nodes.size() == 3 + 6 + 18);
    for (std::int32_t node = -1; node < 27; ++node) {
      const TokenIds prefix = PrefixOf(tree, node);
      if (node >= 0) {
        CHECK(std::exp(tree.nodes[node].log_prob) ==
              doctest::Approx(masses.at(prefix)).epsilon(1e-6));
      }
      for (std::size_t lane = 0; lane < tree.width; ++lane) {
        const double prob = tree.child_probs[(node + 1) * tree.width + lane];
        const TokenId token =
            prefix.size() < 3 ? tree.token_ids[prefix.size() * tree.width + lane] : kPadToken;
        const double wanted =
            token < 0 ? 0.0 : masses.at(WithToken(prefix, token)) / masses.at(prefix);
        CHECK(prob == doctest::Approx(wanted).epsilon(1e-6));
      }
    }
  }
}

// Upper quantile of chi-square at 1e-6 or less (Laurent and Massart 2000, lemma 1).
double ChiSquareBound(std::size_t freedom) {
  const double x = std::log(1e6);
  return static_cast<double>(freedom) + 2.0 * std::sqrt(static_cast<double>(freedom) * x) + 2.0 * x;
}

double ChiSquare(const std::map<TokenIds, int>& counts,
                 const std::map<TokenIds, double>& probabilities, int samples) {
  double sum = 0.0;
  for (const auto& [key, probability] : probabilities) {
    const double wanted = probability * samples;
    const auto at = counts.find(key);
    const double off = (at == counts.end() ? 0 : at->second) - wanted;
    sum += off * off / wanted;
  }
  return sum;
}

TEST_CASE("paths come out as samples from the joint, siblings as samples without replacement") {
  const auto lm = ExampleLm();
  const LmState start = lm->StateOfContext(TokenIds{0}, true);
  const Sausage lattice = Lattice(3);
  const auto masses = ListMasses(lattice, lm.get(), start, 0.75);
  constexpr int kSamples = 40000;
  std::map<TokenIds, int> paths, pairs;
  for (int key = 0; key < kSamples; ++key) {
    const SampledTree tree =
        Sample(lattice, lm.get(), start,
               {0.75, 9, NoiseUse::kIndependent, 1.0, static_cast<std::uint64_t>(key)});
    ++paths[PrefixOf(tree, 2)];  // the first sample is nodes 0, 1, 2
    TokenIds firsts;
    for (const TreeNode& node : tree.nodes) {
      if (node.parent < 0) firsts.push_back(node.token_id);
    }
    if (firsts.size() >= 2) ++pairs[{firsts[0], firsts[1]}];
  }
  std::map<TokenIds, double> whole;
  for (const auto& [prefix, mass] : masses) {
    if (prefix.size() == 3) whole[prefix] = mass;
  }
  CHECK(ChiSquare(paths, whole, kSamples) < ChiSquareBound(whole.size() - 1));
  // The second token of a pair, given the first: q without it, whatever else the tree holds.
  for (TokenId first = 0; first < 3; ++first) {
    std::map<TokenIds, int> counts;
    std::map<TokenIds, double> probabilities;
    int total = 0;
    for (TokenId second = 0; second < 3; ++second) {
      if (second == first) continue;
      counts[{second}] = pairs[{first, second}];
      total += pairs[{first, second}];
      probabilities[{second}] = masses.at({second}) / (1.0 - masses.at({first}));
    }
    REQUIRE(total > 1000);
    CHECK(ChiSquare(counts, probabilities, total) < ChiSquareBound(1));
  }
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

TEST_CASE("batch: padding, and the same rows whatever else is in the batch") {
  const auto lm = ExampleLm();
  const std::vector<Sausage> lattices = {Lattice(1), Lattice(2), Lattice(1)};
  const auto offsets = std::vector<std::int64_t>(4, 0);
  const std::vector<std::uint64_t> keys = {5, 6, 5}, positions = {0, 0, 0};
  const SampleOptions options{1.0, 40, NoiseUse::kIndependent, 1.0};
  const SampledTreeBatch batch =
      SampleTreeBatch(lattices, lm.get(), {{}, offsets, true}, options, keys, positions, 2);
  CHECK(batch.counts == std::vector<std::int32_t>{27, 27, 27});
  CHECK(batch.token_ids[39] == kPadToken);
  const auto row = [](const auto& values, std::size_t b) {
    const std::size_t size = values.size() / 3;
    return std::vector(values.begin() + static_cast<std::ptrdiff_t>(b * size),
                       values.begin() + static_cast<std::ptrdiff_t>((b + 1) * size));
  };
  CHECK(row(batch.token_ids, 0) == row(batch.token_ids, 2));
  CHECK(row(batch.child_probs, 0) == row(batch.child_probs, 2));
  CHECK(row(batch.token_ids, 0) != row(batch.token_ids, 1));
  CHECK_THROWS_WITH_AS(
      SampleTreeBatch(lattices, lm.get(), {{}, offsets, true}, options, {}, positions, 1),
      doctest::Contains("found 0 keys"), ValueError);
  SampledTree out;
  CHECK_THROWS_WITH_AS(SampleTree(lattices[0], nullptr, {}, {1.0, 1, NoiseUse::kShared, 0.0}, &out),
                       doctest::Contains("sharpness is 0"), ValueError);
  CHECK_THROWS_AS(SampleTree(lattices[0], nullptr, {}, {1.0, 0}, &out), ValueError);
}

TEST_CASE("a slot that is masked altogether ends the tree") {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  const std::vector<float> open = {3.0f, 0.0f}, masked = {kMasked, kMasked};
  std::vector<Sausage> lattices(3);
  for (const auto& scores : {open, masked, open}) lattices[0].AddSlot(TokenIds{1, 0}, scores);
  for (const auto& scores : {masked, open, open}) lattices[1].AddSlot(TokenIds{1, 0}, scores);
  for (const auto& scores : {open, open, open}) lattices[2].AddSlot(TokenIds{1, 0}, scores);
  const SampledTree tree = Sample(lattices[0], nullptr, {}, {1.0, 10});
  CHECK(tree.nodes.size() == 2);
  CHECK(tree.child_probs[0] + tree.child_probs[1] == doctest::Approx(1.0));
  CHECK(Sample(lattices[1], nullptr, {}, {1.0, 10}).nodes.empty());

  const std::vector<std::int64_t> offsets(4, 0);
  const std::vector<std::uint64_t> keys = {1, 2, 3}, positions(3, 0);
  const SampledTreeBatch batch =
      SampleTreeBatch(lattices, nullptr, {{}, offsets, true}, {1.0, 10}, keys, positions, 1);
  CHECK(batch.counts == std::vector<std::int32_t>{2, 0, 10});
  REQUIRE(batch.width >= 2);  // kernels pad it
  // The first slot of lattice 0, then padding up to lattice 2.
  TokenIds expected(6 * batch.width, -1);
  expected[0] = 0;
  expected[1] = 1;
  const auto first = batch.slot_token_ids.begin();
  CHECK(TokenIds(first, first + static_cast<std::ptrdiff_t>(6 * batch.width)) == expected);
}

TEST_CASE("SampleToken: the argmax of logits and noise, and its distribution") {
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
  const std::vector<float> few = {0.0f, 1.0f, -std::numeric_limits<float>::infinity(), 2.0f};
  const double total = 1.0 + std::exp(1.0) + std::exp(2.0);
  std::map<TokenIds, int> counts;
  constexpr int kSamples = 100000;
  for (int i = 0; i < kSamples; ++i) {
    ++counts[{SampleToken(few, 1.0, NoiseRow(3, static_cast<std::uint64_t>(i)))}];
  }
  CHECK(counts.find({2}) == counts.end());
  CHECK(ChiSquare(counts,
                  {{{0}, 1 / total}, {{1}, std::exp(1.0) / total}, {{3}, std::exp(2.0) / total}},
                  kSamples) < ChiSquareBound(2));
  const std::vector<float> none(3, -std::numeric_limits<float>::infinity());
  CHECK_THROWS_WITH_AS(SampleToken(none, 1.0, NoiseRow(1, 1)), doctest::Contains("none of them"),
                       ValueError);
  const std::vector<float> nan = {0.0f, std::nanf("")};
  CHECK_THROWS_WITH_AS(SampleToken(nan, 1.0, NoiseRow(1, 1)), doctest::Contains("token 1"),
                       ValueError);
}

}  // namespace
}  // namespace lattice_bpd
