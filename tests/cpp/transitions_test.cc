// All searches against all paths, with and without transition scores, of both normalizations; every
// build of the fused engine.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "lattice_bpd/draft/sample_tree.h"
#include "random_cases.h"

namespace lattice_bpd {
namespace {

constexpr Normalization kBoth[] = {Normalization::kGlobal, Normalization::kLocal};

struct Prefix {
  Tokens token_ids;
  std::size_t last = 0;   // candidate of the last slot
  double score = 0.0;     // of its parts on the grid: the path's own
  double log_prob = 0.0;  // product of the local q
};

// Every prefix of each length, 0 first.
std::vector<std::vector<Prefix>> ListPrefixes(const Sausage& lattice, const LmOracle& oracle,
                                              const Tokens& context, double alpha) {
  std::vector<std::vector<Prefix>> all = {{{}}};
  for (std::size_t slot = 0; slot < lattice.num_slots(); ++slot) {
    all.emplace_back();
    for (const Prefix& prefix : all[slot]) {
      Tokens before = context;
      before.insert(before.end(), prefix.token_ids.begin(), prefix.token_ids.end());
      std::vector<double> scores;
      for (std::size_t i = 0; i < lattice.width(slot); ++i) {
        double score = ToScoreGrid(lattice.scores(slot)[i]) +
                       oracle.Scaled(before, lattice.token_ids(slot)[i], alpha);
        if (slot > 0 && lattice.has_transitions()) {
          score += ToScoreGrid(lattice.transitions(slot)[prefix.last * lattice.width(slot) + i]);
        }
        scores.push_back(score);
      }
      const double best = *std::max_element(scores.begin(), scores.end());
      double total = 0.0;
      for (const double score : scores) total += std::exp(score - best);
      for (std::size_t i = 0; i < scores.size(); ++i) {
        Prefix next = prefix;
        next.token_ids.push_back(lattice.token_ids(slot)[i]);
        next.last = i;
        next.score += scores[i];
        next.log_prob += scores[i] - best - std::log(total);
        all[slot + 1].push_back(next);
      }
    }
  }
  return all;
}

using LogMasses = std::map<Tokens, double>;

// ln of the probability of every prefix of one token or more.
LogMasses LogMassesOf(const std::vector<std::vector<Prefix>>& prefixes,
                      Normalization normalization) {
  LogMasses logs;
  if (normalization == Normalization::kLocal) {
    for (std::size_t length = 1; length < prefixes.size(); ++length) {
      for (const Prefix& prefix : prefixes[length]) logs[prefix.token_ids] = prefix.log_prob;
    }
    return logs;
  }
  double best = -std::numeric_limits<double>::infinity();
  for (const Prefix& path : prefixes.back()) best = std::max(best, path.score);
  std::map<Tokens, double> sums;
  for (const Prefix& path : prefixes.back()) {
    for (std::size_t length = 0; length < prefixes.size(); ++length) {
      const auto end = path.token_ids.begin() + static_cast<std::ptrdiff_t>(length);
      sums[Tokens(path.token_ids.begin(), end)] += std::exp(path.score - best);
    }
  }
  for (const auto& [prefix, sum] : sums) {
    if (!prefix.empty()) logs[prefix] = std::log(sum / sums[{}]);
  }
  return logs;
}

// Every instruction set gives what `find` gives; returns that.
template <typename Find>
auto ByAllInstructionSets(const Find& find) {
  const auto names = FusedInstructionSets();
  SetFusedInstructionSet(names[0]);
  const auto first = find();
  for (const std::string& name : names) {
    INFO("instruction set ", name);
    SetFusedInstructionSet(name);
    CHECK(find() == first);
  }
  SetFusedInstructionSet("");
  return first;
}

struct Example {
  const Case& made;
  const Sausage& lattice;
  Normalization normalization;
  const std::vector<std::vector<Prefix>>& prefixes;
  LogMasses logs;
};

using Nodes = std::vector<std::tuple<Tokens, std::int32_t, double>>;

Nodes NodesOf(const std::vector<TreeNode>& tree) {
  Nodes nodes;
  for (const TreeNode& node : tree) {
    Tokens prefix = node.parent < 0 ? Tokens{} : std::get<0>(nodes[node.parent]);
    prefix.push_back(node.token_id);
    CHECK(static_cast<std::size_t>(node.depth) + 1 == prefix.size());
    nodes.emplace_back(prefix, node.parent, node.log_prob);
  }
  return nodes;
}

void CheckDrafts(const Example& e, int num_drafts) {
  const auto find = [&](Engine engine) {
    const DraftList list = FindDrafts(e.lattice, e.made.lm.get(), e.made.Start(),
                                      {num_drafts, e.made.alpha, engine, e.normalization});
    return std::make_pair(list.token_ids, list.scores);
  };
  const auto drafts = ByAllInstructionSets([&] { return find(Engine::kFused); });
  std::map<Tokens, double> scores;
  std::vector<double> best;
  for (const Prefix& path : e.prefixes.back()) {
    const bool is_local = e.normalization == Normalization::kLocal;
    best.push_back(scores[path.token_ids] = is_local ? path.log_prob : path.score);
  }
  std::sort(best.rbegin(), best.rend());
  const std::size_t count = std::min(best.size(), static_cast<std::size_t>(num_drafts));
  REQUIRE(drafts.second.size() == count);
  const auto slots = static_cast<std::ptrdiff_t>(e.lattice.num_slots());
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = drafts.first.begin() + static_cast<std::ptrdiff_t>(i) * slots;
    const double score = scores.at({begin, begin + slots});
    CHECK(drafts.second[i] == doctest::Approx(score).epsilon(1e-6));
    CHECK(drafts.second[i] == doctest::Approx(best[i]).epsilon(1e-6));
    if (e.normalization == Normalization::kGlobal) CHECK(drafts.second[i] == best[i]);
  }
  if (e.normalization == Normalization::kGlobal) {
    CHECK(find(Engine::kOpenFst) == drafts);
  }
}

void CheckTree(const Example& e, int max_nodes) {
  const Nodes nodes = ByAllInstructionSets([&] {
    return NodesOf(FindTree(e.lattice, e.made.lm.get(), e.made.Start(), e.made.alpha, max_nodes,
                            e.normalization));
  });
  std::vector<double> best;
  for (const auto& entry : e.logs) best.push_back(entry.second);
  std::sort(best.rbegin(), best.rend());
  REQUIRE(nodes.size() == std::min(best.size(), static_cast<std::size_t>(max_nodes)));
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto& [prefix, parent, log_prob] = nodes[i];
    CHECK(std::exp(log_prob) == doctest::Approx(std::exp(e.logs.at(prefix))).epsilon(1e-5));
    CHECK(std::exp(log_prob) == doctest::Approx(std::exp(best[i])).epsilon(1e-5));
    CHECK(log_prob <= (parent < 0 ? 0.0 : std::get<2>(nodes[parent])));
  }
}

double AcceptLengthOf(const LogMasses& logs, const Tokens& path) {
  double total = 0.0;
  for (std::size_t size = 1; size <= path.size(); ++size) {
    total += std::exp(logs.at({path.begin(), path.begin() + static_cast<std::ptrdiff_t>(size)}));
  }
  return total;
}

void CheckChain(const Example& e) {
  const Nodes nodes = ByAllInstructionSets([&] {
    return NodesOf(FindChain(e.lattice, e.made.lm.get(), e.made.Start(),
                             {e.made.alpha, ChainObjective::kAcceptLength, e.normalization}));
  });
  double best = 0.0;
  for (const Prefix& path : e.prefixes.back()) {
    best = std::max(best, AcceptLengthOf(e.logs, path.token_ids));
  }
  REQUIRE(nodes.size() == e.lattice.num_slots());
  CHECK(AcceptLengthOf(e.logs, std::get<0>(nodes.back())) == doctest::Approx(best).epsilon(2e-6));
  for (const auto& [prefix, parent, log_prob] : nodes) {
    CHECK(std::exp(log_prob) == doctest::Approx(std::exp(e.logs.at(prefix))).epsilon(1e-5));
  }
}

// Whatever the normalization: the most probable candidate of each row, then of its row.
void CheckWalk(const Example& e) {
  const Nodes nodes = ByAllInstructionSets([&] {
    return NodesOf(FindChain(e.lattice, e.made.lm.get(), e.made.Start(),
                             {e.made.alpha, ChainObjective::kGreedyWalk, e.normalization}));
  });
  REQUIRE(nodes.size() == e.lattice.num_slots());
  Tokens walked;
  for (std::size_t slot = 0; slot < nodes.size(); ++slot) {
    const Prefix* best = nullptr;  // smallest token id of equal scores
    double before = 0.0;
    for (const Prefix& prefix : e.prefixes[slot]) {
      if (prefix.token_ids == walked) before = prefix.score;
    }
    for (const Prefix& prefix : e.prefixes[slot + 1]) {
      if (!std::equal(walked.begin(), walked.end(), prefix.token_ids.begin())) continue;
      const bool better =
          best == nullptr || prefix.score - before > best->score - before ||
          (prefix.score == best->score && prefix.token_ids.back() < best->token_ids.back());
      if (better) best = &prefix;
    }
    walked = best->token_ids;
    CHECK(std::get<0>(nodes[slot]) == walked);
    CHECK(std::get<2>(nodes[slot]) == doctest::Approx(best->log_prob).epsilon(1e-6));
  }
}

// The rows that children were sampled from are the exact q.
void CheckSample(const Example& e) {
  SampleOptions options;
  options.alpha = e.made.alpha;
  options.max_nodes = 12;
  options.key = 7;
  options.normalization = e.normalization;
  const auto sample = [&] {
    SampledTree tree;
    SampleTree(e.lattice, e.made.lm.get(), e.made.Start(), options, &tree);
    return std::make_tuple(NodesOf(tree.nodes), tree.token_ids, tree.child_probs);
  };
  const auto [nodes, token_ids, child_probs] = ByAllInstructionSets(sample);
  const std::size_t width = token_ids.size() / e.lattice.num_slots();
  for (std::size_t i = 0; i <= nodes.size(); ++i) {
    const Tokens prefix = i == 0 ? Tokens{} : std::get<0>(nodes[i - 1]);
    if (prefix.size() == e.lattice.num_slots()) continue;
    const double log_prob = prefix.empty() ? 0.0 : e.logs.at(prefix);
    double total = 0.0;
    for (std::size_t lane = 0; lane < e.lattice.width(prefix.size()); ++lane) {
      Tokens longer = prefix;
      longer.push_back(token_ids[prefix.size() * width + lane]);
      const double q = child_probs[i * width + lane];
      CHECK(q == doctest::Approx(std::exp(e.logs.at(longer) - log_prob)).epsilon(1e-5));
      total += q;
    }
    CHECK(total == doctest::Approx(1.0).epsilon(1e-12));
  }
}

void CheckAll(Random* random, const Case& made, const Sausage& lattice) {
  const LmOracle oracle(made.lm.get(), made.bos);
  const auto prefixes = ListPrefixes(lattice, oracle, made.context, made.alpha);
  const int numbers[] = {1, 4, 16, 3000};
  for (const Normalization normalization : kBoth) {
    const bool is_local = normalization == Normalization::kLocal;
    INFO("local: ", is_local);
    const Example e = {made, lattice, normalization, prefixes,
                       LogMassesOf(prefixes, normalization)};
    CheckDrafts(e, numbers[Below(random, 4)]);
    CheckTree(e, numbers[Below(random, 4)]);
    CheckChain(e);
    CheckWalk(e);
    CheckSample(e);
  }
}

TEST_CASE("transitions: searches against all paths") {
  for (std::uint32_t seed = 0; seed < 7 * 50; ++seed) {
    INFO("seed ", seed);
    Random random(seed);
    const Case made = RandomCase(&random, seed, 9);
    const Sausage plain = SmallLattice(&random, 9);
    if (plain.num_slots() == 0) continue;
    const Sausage lattice = seed % 4 == 0 ? plain : WithTransitions(&random, plain);
    CheckAll(&random, made, lattice);
  }
}

TEST_CASE("transitions: wide slots, values that are computed again") {
  for (unsigned seed = 0; seed < 4; ++seed) {
    INFO("seed ", seed);
    Random random(seed);
    const auto lm = RandomLm(&random, 700, 600, 3, 20000, seed % 2 == 0);
    const std::size_t width = seed < 3 ? 100 : 600;  // 600: more values than are kept
    Sausage plain;
    for (int slot = 0; slot < 5; ++slot) {
      Tokens token_ids;
      std::vector<float> scores;
      for (std::size_t i = 0; i < width; ++i) {
        token_ids.push_back(static_cast<TokenId>((i * 7 + static_cast<unsigned>(slot)) % 601));
        scores.push_back(Sample(&random, false));
      }
      plain.AddSlot(token_ids, scores);
    }
    const Sausage lattice = WithTransitions(&random, plain);
    const LmState start = lm->StateOfContext(Tokens{1, 2}, true);
    const auto list = [&](Engine engine, Normalization normalization) {
      const DraftOptions options = {9, 0.75, engine, normalization};
      const DraftList drafts = FindDrafts(lattice, lm.get(), start, options);
      return std::make_pair(drafts.token_ids, drafts.scores);
    };
    if (width == 100) {  // OpenFst takes seconds for the other
      const auto expected = list(Engine::kOpenFst, Normalization::kGlobal);
      CHECK(list(Engine::kFused, Normalization::kGlobal) == expected);
    }
    for (const Normalization normalization : kBoth) {
      const auto drafts = ByAllInstructionSets([&] { return list(Engine::kFused, normalization); });
      const auto nodes = ByAllInstructionSets(
          [&] { return NodesOf(FindTree(lattice, lm.get(), start, 0.75, 200, normalization)); });
      const auto chain = ByAllInstructionSets([&] {
        return NodesOf(FindChain(lattice, lm.get(), start,
                                 {0.75, ChainObjective::kAcceptLength, normalization}));
      });
      CHECK(drafts.second.size() == 9);
      CHECK(nodes.size() == 200);
      CHECK(chain.size() == 5);
      for (const auto& [prefix, parent, log_prob] : chain) {  // as in the tree
        for (const auto& [other, other_parent, other_log_prob] : nodes) {
          if (other == prefix) CHECK(log_prob == doctest::Approx(other_log_prob).epsilon(1e-6));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lattice_bpd
