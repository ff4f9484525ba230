// Prefix trees of scores of any magnitude; transitions_test.cc compares others with all paths.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/find_tree.h"
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

}  // namespace
}  // namespace lattice_bpd
