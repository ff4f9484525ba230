// Chains of greatest expected accept length against all paths; every build of the fused engine.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/chain_batch.h"
#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "random_cases.h"

namespace lattice_bpd {
namespace {

using Slot = std::pair<Tokens, std::vector<float>>;

Sausage Lattice(const std::vector<Slot>& slots) {
  Sausage sausage;
  for (const Slot& slot : slots) sausage.AddSlot(slot.first, slot.second);
  return sausage;
}

Tokens TokensOf(const std::vector<TreeNode>& chain) {
  Tokens tokens;
  for (const TreeNode& node : chain) tokens.push_back(node.token_id);
  return tokens;
}

// The sum of the masses of a path's prefixes.
double AcceptLengthOf(const std::map<Tokens, double>& masses, const Tokens& path) {
  double total = 0.0;
  for (std::size_t size = 1; size <= path.size(); ++size) {
    total += masses.at({path.begin(), path.begin() + static_cast<std::ptrdiff_t>(size)});
  }
  return total;
}

void CheckChain(const std::vector<TreeNode>& chain, const std::vector<OraclePath>& paths) {
  const std::map<Tokens, double> masses = MassesOf(paths);
  double best = 0.0;
  for (const OraclePath& path : paths) {
    best = std::max(best, AcceptLengthOf(masses, path.token_ids));
  }
  const Tokens tokens = TokensOf(chain);
  REQUIRE(tokens.size() == (paths.empty() ? 0 : paths[0].token_ids.size()));
  CHECK(AcceptLengthOf(masses, tokens) == doctest::Approx(best).epsilon(2e-6));
  CHECK(ExpectedAcceptLength(chain) == doctest::Approx(best).epsilon(1e-5));
  Tokens prefix;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    prefix.push_back(chain[i].token_id);
    CHECK(chain[i].parent == static_cast<std::int32_t>(i) - 1);
    CHECK(chain[i].depth == static_cast<std::int32_t>(i));
    CHECK(std::exp(chain[i].log_prob) == doctest::Approx(masses.at(prefix)).epsilon(1e-5));
    CHECK(chain[i].log_prob <= (i == 0 ? 0.0 : chain[i - 1].log_prob));
  }
}

// Every instruction set; returns the chain of the first.
std::vector<TreeNode> ChainOf(const Case& made, const Sausage& lattice) {
  std::vector<TreeNode> first;
  for (const std::string& name : FusedInstructionSets()) {
    INFO("instruction set ", name);
    SetFusedInstructionSet(name);
    const std::vector<TreeNode> chain =
        FindChain(lattice, made.lm.get(), made.Start(), {made.alpha});
    if (first.empty()) first = chain;
    CHECK(TokensOf(chain) == TokensOf(first));
    for (std::size_t i = 0; i < chain.size(); ++i) CHECK(chain[i].log_prob == first[i].log_prob);
  }
  SetFusedInstructionSet("");
  return first;
}

TEST_CASE("chain: the greatest expected accept length of all paths") {
  for (std::uint32_t seed = 0; seed < 7 * 60; ++seed) {
    INFO("seed ", seed);
    Random random(seed);
    const Case made = RandomCase(&random, seed, 9);
    const Sausage lattice = SmallLattice(&random, 9);
    CheckChain(ChainOf(made, lattice), made.Paths(lattice));
  }
}

TEST_CASE("chain: a worked example that is not the best path") {
  // A bigram LM in all but name: after 0 come 3, 4, 5 alike, after 1 nearly always 3.
  //   P(0) = 0.6, each path through it 0.2: expected length 0.6 + 0.2 = 0.8
  //   P(1) = 0.4, P(1 3) = 0.3: expected length 0.7, the best path
  const double third = std::log(1.0 / 3), most = std::log(0.75), little = std::log(0.125);
  std::vector<Ngram> ngrams;
  const Vocabulary vocabulary = MakeVocabulary(6, {});
  for (Symbol symbol = 0; symbol < vocabulary.num_symbols(); ++symbol) {
    ngrams.push_back({{symbol}, 0.0f, 0.0f});
  }
  for (Symbol word : {3u, 4u, 5u}) {
    ngrams.push_back({{0u, word}, static_cast<float>(third), 0.0f});
    ngrams.push_back({{1u, word}, static_cast<float>(word == 3 ? most : little), 0.0f});
  }
  const auto lm = BackoffLm::FromTrie(BuildTrie(vocabulary, ListsOf(2, ngrams)));
  const Sausage lattice =
      Lattice({{{0, 1}, {static_cast<float>(std::log(0.6)), static_cast<float>(std::log(0.4))}},
               {{3, 4, 5}, {0.0f, 0.0f, 0.0f}}});
  const DraftList best = FindDrafts(lattice, lm.get(), {}, {1, 1.0});
  CHECK(best.token_ids == Tokens{1, 3});
  const std::vector<TreeNode> chain = FindChain(lattice, lm.get(), {}, {1.0});
  CHECK(TokensOf(chain) == Tokens{0, 3});  // of the three that tie the smallest id
  REQUIRE(chain.size() == 2);
  CHECK(chain[0].log_prob == doctest::Approx(std::log(0.6)).epsilon(1e-6));
  CHECK(chain[1].log_prob == doctest::Approx(std::log(0.2)).epsilon(1e-6));
  CHECK(ExpectedAcceptLength(chain) == doctest::Approx(0.8).epsilon(1e-6));
}

TEST_CASE("chain: scores of any magnitude") {
  const auto lm = ExampleLm();
  for (unsigned seed = 0; seed < 40; ++seed) {
    INFO("seed ", seed);
    Random random(seed);
    const float range = std::pow(4.0f, static_cast<float>(seed % 10));
    const double alpha = seed % 3 == 0 ? 0.5 : seed % 3 == 1 ? 4000.0 : -4000.0;
    Sausage lattice;
    for (int j = 0; j < 4; ++j) {
      std::vector<float> scores;
      for (int i = 0; i < 3; ++i) {
        scores.push_back(std::uniform_real_distribution<float>(-range, range)(random));
      }
      lattice.AddSlot(Tokens{0, 1, 2}, scores);
    }
    const std::vector<TreeNode> chain = FindChain(lattice, lm.get(), {}, {alpha});
    CheckChain(chain, ListPaths(lattice, LmOracle(lm.get(), false), {}, alpha));
  }
}

TEST_CASE("chain: one of many slots and candidates") {
  Sausage lattice;
  Tokens token_ids(200);
  for (int i = 0; i < 200; ++i) token_ids[i] = i;
  for (int j = 0; j < 40; ++j) lattice.AddSlot(token_ids, std::vector<float>(200, 1.0f));
  const std::vector<TreeNode> chain = FindChain(lattice, nullptr, {}, {1.0});
  CHECK(TokensOf(chain) == Tokens(40, 0));
  CHECK(chain.back().log_prob == doctest::Approx(-40 * std::log(200.0)).epsilon(1e-6));
}

TEST_CASE("chain: candidates with fewer slots, at a temperature") {
  const auto lm = ExampleLm();
  const Tokens token_ids = {0, 1, 2, 2, 1, 0};
  const std::vector<float> scores = {3.0f, 2.0f, 1.0f, 5.0f, 4.0f, -1.0f};
  std::vector<float> halves = scores;
  for (float& score : halves) score /= 2.0f;
  const std::vector<std::int64_t> none(2, 0);
  for (std::int32_t slots : {-1, 0, 1, 2, 9}) {
    const CandidatesView view{token_ids.data(), scores.data(), 1, 2, 3, &slots, 2.0f};
    Sausage lattice;
    for (std::int32_t j = 0; j < std::min(slots, 2); ++j) {
      lattice.AddSlot({token_ids.data() + 3 * j, 3}, {halves.data() + 3 * j, 3});
    }
    const auto alone = FindChain(lattice, lm.get(), lm->StateOfContext({}, true), {0.5});
    const auto drafts = FindChainDrafts(view, lm.get(), {{}, none, true}, {0.5}, -1e9);
    CHECK(drafts == std::vector<Tokens>{TokensOf(alone)});
  }
}

TEST_CASE("chain: batches, padding, errors") {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  const auto lm = ExampleLm();
  const Slot open = {{1, 0}, {3.0f, 0.0f}}, masked = {{2, 0}, {kMasked, kMasked}};
  const std::vector<Sausage> lattices = {Lattice({open, open}), Lattice({open, masked, open}),
                                         Lattice({masked, open})};
  const std::vector<std::int64_t> none(4, 0);
  for (int threads : {1, 3}) {
    const ChainBatch chains = FindChainBatch(lattices, lm.get(), {{}, none, true}, {0.5}, threads);
    CHECK(chains.num_slots == 2);
    CHECK(chains.token_ids == Tokens{1, 1, 1, kPadToken, kPadToken, kPadToken});
    CHECK(chains.counts == std::vector<std::int32_t>{1, 1, 0});
    CHECK(std::isinf(chains.log_probs[3]));
    CHECK(std::isinf(chains.accept_lengths[2]));
    const LmState start = lm->StateOfContext({}, true);
    const auto alone = FindChain(lattices[0], lm.get(), start, {0.5});
    CHECK(chains.log_probs[1] == static_cast<float>(alone[1].log_prob));
    CHECK(chains.accept_lengths[0] == static_cast<float>(ExpectedAcceptLength(alone)));
  }
  const auto drafts = FindChainDrafts(lattices, lm.get(), {{}, none, true}, {0.5}, -1e9);
  CHECK(drafts == std::vector<Tokens>{{1, 1}, {1}, {}});
  const auto cut = FindChainDrafts(lattices, lm.get(), {{}, none, true}, {0.5}, std::log(0.999));
  CHECK(cut == std::vector<Tokens>(3));
  CHECK_THROWS_AS(FindChain(lattices[0], lm.get(), {}, {1e7}), ValueError);
  CHECK_THROWS_AS(FindChain(Lattice({{{7}, {0.0f}}}), lm.get(), {}, {1.0}), ValueError);
  CHECK(FindChain(Sausage(), lm.get(), {}, {1.0}).empty());
}

}  // namespace
}  // namespace lattice_bpd
