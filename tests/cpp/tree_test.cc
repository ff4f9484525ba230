// Prefix trees: an example worked by hand, the best of all prefix-closed sets, padding and masks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/ancestor_mask.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/tree_batch.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

using TokenIds = std::vector<TokenId>;
using Slot = std::pair<TokenIds, std::vector<float>>;

Sausage Lattice(const std::vector<Slot>& slots) {
  Sausage sausage;
  for (const Slot& slot : slots) sausage.AddSlot(slot.first, slot.second);
  return sausage;
}

TokenIds PrefixOf(const std::vector<TreeNode>& tree, std::int32_t node) {
  TokenIds tokens;
  for (; node >= 0; node = tree[node].parent) tokens.insert(tokens.begin(), tree[node].token_id);
  return tokens;
}

// The probability of every prefix, from the list of all paths.
std::map<TokenIds, double> ListMasses(const Sausage& lattice, const BackoffLm* lm,
                                      const LmState& start, double alpha) {
  const DraftList all = FindDrafts(lattice, lm, start, {kMaxDrafts, alpha, Engine::kOpenFst});
  std::map<TokenIds, double> masses;
  double total = 0.0;
  for (const double score : all.scores) total += std::exp(score - all.scores[0]);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto first = all.token_ids.begin() + static_cast<std::ptrdiff_t>(i * all.num_slots);
    for (std::size_t length = 1; length <= all.num_slots; ++length) {
      masses[TokenIds(first, first + static_cast<std::ptrdiff_t>(length))] +=
          std::exp(all.scores[i] - all.scores[0]) / total;
    }
  }
  return masses;
}

TEST_CASE("worked example: probabilities as sums of paths") {
  //   slot 0: b 1.0, c 1.5     slot 1: a 0.5, c 0.25     context: a, so the history is <s> a
  const auto lm = ExampleLm();
  const Sausage lattice = Lattice({{{1, 2}, {1.0f, 1.5f}}, {{0, 2}, {0.5f, 0.25f}}});
  const TokenIds context = {0};
  const LmState start = lm->StateOfContext(context, true);
  // Scores: b c, b a, c a, c c.
  const double bc = std::exp(1.25 + 0.5 * (-0.375 - 0.125));
  const double ba = std::exp(1.5 + 0.5 * (-0.375 + (-0.125 - 0.25 - 1.0)));
  const double ca = std::exp(2.0 + 0.5 * ((-1.25 - 0.5 - 2.0) + (0.0 - 1.0)));
  const double cc = std::exp(1.75 + 0.5 * ((-1.25 - 0.5 - 2.0) + (0.0 - 2.0)));
  const double z = bc + ba + ca + cc;
  const std::vector<TreeNode> tree = FindTree(lattice, lm.get(), start, 0.5, 100);
  REQUIRE(tree.size() == 6);
  const TokenIds token_ids = {1, 2, 0, 2, 0, 2};  // b; its c, its a; c; its a, its c
  const std::vector<std::int32_t> parents = {-1, 0, 0, -1, 3, 3};
  const std::vector<double> masses = {(bc + ba) / z, bc / z, ba / z, (ca + cc) / z, ca / z, cc / z};
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(tree[i].token_id == token_ids[i]);
    CHECK(tree[i].parent == parents[i]);
    CHECK(tree[i].depth == (parents[i] < 0 ? 0 : 1));
    CHECK(std::exp(tree[i].log_prob) == doctest::Approx(masses[i]).epsilon(1e-6));
  }
}

TEST_CASE("ties: the smaller token id, and a prefix before what is longer") {
  const Sausage lattice = Lattice({{{5, 2}, {0, 0}}, {{9}, {0}}, {{8, 3}, {0, 0}}});
  const std::vector<TreeNode> tree = FindTree(lattice, nullptr, {}, 1.0, 8);
  std::vector<TokenIds> prefixes;
  for (std::int32_t i = 0; i < 8; ++i) prefixes.push_back(PrefixOf(tree, i));
  const std::vector<TokenIds> expected = {{2},       {2, 9},    {5},       {5, 9},
                                          {2, 9, 3}, {2, 9, 8}, {5, 9, 3}, {5, 9, 8}};
  CHECK(prefixes == expected);
  CHECK(tree[0].log_prob == tree[3].log_prob);
  CHECK(tree[7].log_prob == doctest::Approx(std::log(0.25)));
}

// ln of the probability of every prefix, whatever their magnitude.
std::map<TokenIds, double> ListLogMasses(const Sausage& lattice, const BackoffLm* lm,
                                         const LmState& start, double alpha) {
  const DraftList all = FindDrafts(lattice, lm, start, {kMaxDrafts, alpha, Engine::kOpenFst});
  std::map<TokenIds, double> logs;  // paths come best first, so what is added is smaller
  const auto add = [&logs](const TokenIds& prefix, double log) {
    const auto [at, is_new] = logs.emplace(prefix, log);
    if (!is_new) at->second += std::log1p(std::exp(log - at->second));
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto first = all.token_ids.begin() + static_cast<std::ptrdiff_t>(i * all.num_slots);
    for (std::size_t length = 0; length <= all.num_slots; ++length) {
      add(TokenIds(first, first + static_cast<std::ptrdiff_t>(length)), all.scores[i]);
    }
  }
  const double total = logs.at({});
  for (auto& entry : logs) entry.second -= total;
  return logs;
}

TEST_CASE("masses of any magnitude") {
  const auto lm = ExampleLm();
  const float infinite = std::numeric_limits<float>::infinity();
  for (unsigned seed = 0; seed < 60; ++seed) {
    INFO("seed ", seed);
    std::mt19937 random(seed);
    const float range = std::pow(4.0f, static_cast<float>(seed % 10));  // 1 .. 262,144
    const double alpha = seed % 3 == 0 ? 0.5 : seed % 3 == 1 ? 4000.0 : -4000.0;
    const auto sample = [&] {
      if (random() % 8 == 0) return -infinite;
      return std::uniform_real_distribution<float>(-range, range)(random);
    };
    std::vector<Slot> slots;
    for (int j = 0; j < 4; ++j) slots.push_back({{0, 1, 2}, {sample(), sample(), sample()}});
    slots[seed % 4].second = {1.0f, 0.0f, sample()};  // not all masked
    const Sausage lattice = Lattice(slots);
    const LmState start = lm->StateOfContext(TokenIds(seed % 3, 0), true);
    const auto logs = ListLogMasses(lattice, lm.get(), start, alpha);
    const std::vector<TreeNode> tree = FindTree(lattice, lm.get(), start, alpha, 200);
    REQUIRE(tree.size() == logs.size() - 1);
    for (std::size_t i = 0; i < tree.size(); ++i) {
      const double wanted = logs.at(PrefixOf(tree, static_cast<std::int32_t>(i)));
      CHECK(tree[i].log_prob == doctest::Approx(wanted).epsilon(1e-6));
      if (i > 0) CHECK(tree[i].log_prob <= tree[i - 1].log_prob);
    }
  }
}

// The most probability that any prefix-closed set of `size` prefixes holds, by trying all.
double BestOfAllSets(const std::map<TokenIds, double>& masses, std::size_t size) {
  const std::vector<std::pair<TokenIds, double>> prefixes(masses.begin(), masses.end());
  double best = 0.0;
  for (std::uint32_t set = 0; set < 1u << prefixes.size(); ++set) {
    std::size_t count = 0;
    double mass = 0.0;
    bool closed = true;
    for (std::size_t i = 0; i < prefixes.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      ++count;
      mass += prefixes[i].second;
      const TokenIds parent(prefixes[i].first.begin(), prefixes[i].first.end() - 1);
      const auto at = std::find_if(prefixes.begin(), prefixes.end(),
                                   [&](const auto& entry) { return entry.first == parent; });
      closed = closed && (parent.empty() || (set >> (at - prefixes.begin()) & 1) != 0);
    }
    if (closed && count == size) best = std::max(best, mass);
  }
  return best;
}

TEST_CASE("no prefix-closed set of as many nodes holds more") {
  const auto lm = ExampleLm();
  for (unsigned seed = 0; seed < 12; ++seed) {
    INFO("seed ", seed);
    std::mt19937 random(seed);
    const auto sample = [&random] { return static_cast<float>(random() % 9) / 4.0f; };
    const Sausage lattice = Lattice({{{0, 1}, {sample(), sample()}},
                                     {{1, 2}, {sample(), sample()}},
                                     {{2, 0}, {sample(), sample()}}});
    const TokenIds context(random() % 3, 0);
    const LmState start = lm->StateOfContext(context, true);
    const auto masses = ListMasses(lattice, lm.get(), start, 0.75);
    const std::vector<TreeNode> all = FindTree(lattice, lm.get(), start, 0.75, 100);
    REQUIRE(all.size() == 14);
    double held = 0.0;
    for (std::size_t size = 1; size <= 14; ++size) {
      const TokenIds prefix = PrefixOf(all, static_cast<std::int32_t>(size) - 1);
      held += masses.at(prefix);
      CHECK(std::exp(all[size - 1].log_prob) == doctest::Approx(masses.at(prefix)).epsilon(1e-5));
      CHECK(held == doctest::Approx(BestOfAllSets(masses, size)).epsilon(1e-6));
      const std::vector<TreeNode> tree =
          FindTree(lattice, lm.get(), start, 0.75, static_cast<int>(size));
      for (std::size_t i = 0; i < size; ++i) {  // nested
        CHECK(tree[i].token_id == all[i].token_id);
        CHECK(tree[i].parent == all[i].parent);
        CHECK(tree[i].log_prob == all[i].log_prob);
      }
    }
  }
}

TEST_CASE("a slot that is masked altogether ends the tree") {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  const auto lm = ExampleLm();
  const Slot open = {{1, 0}, {3.0f, 0.0f}}, masked = {{2, 0}, {kMasked, kMasked}};
  const std::vector<TreeNode> tree = FindTree(Lattice({open, masked, open}), lm.get(), {}, 1.0, 9);
  const std::vector<TreeNode> alone = FindTree(Lattice({open}), lm.get(), {}, 1.0, 9);
  REQUIRE(tree.size() == 2);
  REQUIRE(alone.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(tree[i].token_id == alone[i].token_id);
    CHECK(tree[i].log_prob == alone[i].log_prob);
  }
  CHECK(FindTree(Lattice({masked, open}), lm.get(), {}, 1.0, 3).empty());
}

TEST_CASE("batch: padding, attention mask, paths to leaves") {
  const auto none = std::vector<std::int64_t>(3, 0);
  const std::vector<Sausage> lattices = {Lattice({{{4, 7}, {1, 0}}, {{6}, {0}}}),
                                         Lattice({{{4}, {0}}, {{6}, {0}}})};
  const TreeBatch tree = FindTreeBatch(lattices, nullptr, {{}, none, true}, 1.0, 3, 2);
  // Row 0: 4, 4 6, 7.   Row 1: 4, 4 6, padding.
  CHECK(tree.token_ids == TokenIds{4, 6, 7, 4, 6, kPadToken});
  CHECK(tree.parents == std::vector<std::int32_t>{-1, 0, -1, -1, 0, -1});
  CHECK(tree.depths == std::vector<std::int32_t>{0, 1, 0, 0, 1, 0});
  CHECK(tree.counts == std::vector<std::int32_t>{3, 2});
  CHECK(tree.attention_mask ==
        std::vector<std::uint8_t>{1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1});
  CHECK(tree.max_leaves == 2);
  CHECK(tree.leaf_paths == std::vector<std::int32_t>{0, 1, 2, -1, 0, 1, -1, -1});
  CHECK(std::isinf(tree.log_probs[5]));
  CHECK_THROWS_WITH_AS(FindTreeBatch(lattices, nullptr, {{}, none, true}, 1.0, 0, 1),
                       doctest::Contains("max_nodes is 0"), ValueError);
  CHECK_THROWS_AS(FindTree(lattices[0], nullptr, {}, 1.0, kMaxTreeNodes + 1), ValueError);
  CHECK_THROWS_AS(FindTree(lattices[0], ExampleLm().get(), {}, 1.0, 1), ValueError);
  CHECK(FindTree(Sausage(), nullptr, {}, 1.0, 5).empty());
}

TEST_CASE("ancestor masks: a node attends to itself and its ancestors") {
  std::vector<std::uint8_t> mask(16);
  WriteAncestorMask(std::vector<std::int32_t>{-1, 0, 0}, 4, mask.data());
  CHECK(mask == std::vector<std::uint8_t>{1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1});
  CHECK_THROWS_WITH_AS(WriteAncestorMask(std::vector<std::int32_t>{-1, 1}, 4, mask.data()),
                       doctest::Contains("node 1 has parent 1"), ValueError);
  CHECK_THROWS_WITH_AS(WriteAncestorMask(std::vector<std::int32_t>{-1, 0}, 1, mask.data()),
                       doctest::Contains("found 2 nodes"), ValueError);
}

}  // namespace
}  // namespace lattice_bpd
