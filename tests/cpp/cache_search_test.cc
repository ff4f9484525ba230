// Searches with a cache against all paths, scored straight from the definition; every build of the
// fused engine.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/draft_batch.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "lattice_bpd/draft/tree_batch.h"
#include "random_caches.h"

namespace lattice_bpd {
namespace {

void CheckDrafts(const Case& made, const Sausage& lattice, const std::vector<OraclePath>& paths,
                 int num_drafts) {
  const std::size_t count = std::min(paths.size(), static_cast<std::size_t>(num_drafts));
  Tokens expected;
  for (std::size_t i = 0; i < count; ++i) {
    expected.insert(expected.end(), paths[i].token_ids.begin(), paths[i].token_ids.end());
  }
  for (const std::string& name : FusedInstructionSets()) {
    INFO("instruction set ", name);
    SetFusedInstructionSet(name);
    const DraftList drafts =
        FindDrafts(lattice, made.lm.get(), made.Start(), {num_drafts, made.alpha}, made.Cached());
    CHECK(drafts.token_ids == expected);
    REQUIRE(drafts.size() == count);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(drafts.scores[i] == paths[i].score);
      CHECK(drafts.scores[i] ==
            doctest::Approx(paths[i].direct).epsilon(1e-6));  // of 1 + the larger one
    }
  }
  SetFusedInstructionSet("");
}

void CheckTree(const Case& made, const Sausage& lattice, const std::vector<OraclePath>& paths,
               int max_nodes) {
  const std::map<Tokens, double> masses = MassesOf(paths);
  std::vector<double> best;
  for (const auto& [prefix, mass] : masses) best.push_back(mass);
  std::sort(best.rbegin(), best.rend());
  std::vector<TreeNode> first;
  for (const std::string& name : FusedInstructionSets()) {
    INFO("instruction set ", name);
    SetFusedInstructionSet(name);
    const std::vector<TreeNode> tree =
        FindTree(lattice, made.lm.get(), made.Start(), made.alpha, max_nodes, made.Cached());
    REQUIRE(tree.size() == std::min(masses.size(), static_cast<std::size_t>(max_nodes)));
    std::vector<Tokens> prefixes;
    for (std::size_t i = 0; i < tree.size(); ++i) {
      prefixes.push_back(tree[i].parent < 0 ? Tokens{} : prefixes[tree[i].parent]);
      prefixes[i].push_back(tree[i].token_id);
      CHECK(std::exp(tree[i].log_prob) == doctest::Approx(masses.at(prefixes[i])).epsilon(1e-5));
      CHECK(std::exp(tree[i].log_prob) == doctest::Approx(best[i]).epsilon(1e-5));
    }
    if (first.empty()) first = tree;
    for (std::size_t i = 0; i < tree.size(); ++i) CHECK(tree[i].log_prob == first[i].log_prob);
  }
  SetFusedInstructionSet("");
}

void CheckRandomCase(std::uint32_t seed, std::uint32_t vocab_size) {
  Random random(seed);
  const Case made = RandomCase(&random, seed, vocab_size);
  for (int trial = 0; trial < 3; ++trial) {
    INFO("seed ", seed, " trial ", trial, " alpha ", made.alpha);
    const Sausage lattice = SmallLattice(&random, std::min(vocab_size, 9u));
    const std::vector<OraclePath> paths = made.Paths(lattice);
    const int numbers[] = {1, 4, 16, 3000};
    CheckDrafts(made, lattice, paths, numbers[Below(&random, 4)]);
    CheckTree(made, lattice, paths, numbers[Below(&random, 4)]);
  }
}

TEST_CASE("cache: paths, order, scores and trees are those of the definition") {
  for (std::uint32_t seed = 0; seed < 7 * 6 * 8; ++seed) CheckRandomCase(seed, 9);
}

TEST_CASE("cache: 4-byte keys, tokens that it does not know") {
  for (std::uint32_t seed = 0; seed < 7 * 6; ++seed) CheckRandomCase(seed, 70000);
}

TEST_CASE("cache: wide slots in every instruction set") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    ContextNgram cache(200, 1 + static_cast<int>(seed % 5), 5000);
    const Tokens text = RandomText(&random, 120, 400);
    const auto lm =
        RandomLm(&random, 200, 120, 1 + static_cast<int>(seed % 4), 3000, seed % 2 == 0);
    cache.Update(text, lm.get(), true);
    const Sausage lattice = RandomLattice(&random, 120, 90);
    const CachedContext cached = {&cache, cache.trie().StateOf(text)};
    const LmState start = lm->StateOfContext(text, true);
    SetFusedInstructionSet("scalar");
    const DraftList expected = FindDrafts(lattice, lm.get(), start, {50, 0.5}, cached);
    const std::vector<TreeNode> tree = FindTree(lattice, lm.get(), start, 0.5, 50, cached);
    const CacheOracle oracle(text, cache, lm.get(), true);
    INFO("seed ", seed);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      double score = 0.0;
      Tokens before = text;
      for (std::size_t slot = 0; slot < lattice.num_slots(); ++slot) {
        const TokenId token = expected.token_ids[i * lattice.num_slots() + slot];
        const Span<TokenId> ids = lattice.token_ids(slot);
        const auto at =
            static_cast<std::size_t>(std::find(ids.begin(), ids.end(), token) - ids.begin());
        score += ToScoreGrid(lattice.scores(slot)[at]) + oracle.Scaled(before, token, 0.5);
        before.push_back(token);
      }
      CHECK(expected.scores[i] == score);
    }
    for (const std::string& name : FusedInstructionSets()) {
      INFO("instruction set ", name);
      SetFusedInstructionSet(name);
      const DraftList drafts = FindDrafts(lattice, lm.get(), start, {50, 0.5}, cached);
      CHECK(drafts.token_ids == expected.token_ids);
      CHECK(drafts.scores == expected.scores);
      const std::vector<TreeNode> same = FindTree(lattice, lm.get(), start, 0.5, 50, cached);
      REQUIRE(same.size() == tree.size());
      for (std::size_t i = 0; i < tree.size(); ++i) {
        CHECK(same[i].token_id == tree[i].token_id);
        CHECK(same[i].log_prob == tree[i].log_prob);
      }
    }
    SetFusedInstructionSet("");
  }
}

// The same drafts in two lattices: one of 12 tokens; one whose 2,100 candidates are too many for
// all rows' values to be kept, and all but those 12 too bad to count.
TEST_CASE("cache: values that are computed again, up to the longest chain of rows") {
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    Random random(seed);
    ContextNgram cache(2200, kMaxOrder, 1000);
    const Tokens text = RandomText(&random, 12, 300);
    const auto lm = RandomLm(&random, 2200, 12, kMaxOrder, 3000, false);
    cache.Update(text, lm.get(), true);
    Tokens token_ids(2100);
    std::iota(token_ids.begin(), token_ids.end(), 0);
    Sausage narrow, wide;
    for (int slot = 0; slot < 7; ++slot) {
      std::vector<float> scores(token_ids.size(), -1000.0f);
      for (std::size_t lane = 0; lane < 12; ++lane) scores[lane] = Sample(&random, false);
      narrow.AddSlot({token_ids.data(), 12}, {scores.data(), 12});
      wide.AddSlot(token_ids, scores);
    }
    const CachedContext cached = {&cache, cache.trie().StateOf(text)};
    const LmState start = lm->StateOfContext(text, true);
    const DraftList expected = FindDrafts(narrow, lm.get(), start, {20, 0.5}, cached);
    for (const std::string& name : FusedInstructionSets()) {
      INFO("seed ", seed, " instruction set ", name);
      SetFusedInstructionSet(name);
      const DraftList drafts = FindDrafts(wide, lm.get(), start, {20, 0.5}, cached);
      CHECK(drafts.token_ids == expected.token_ids);
      CHECK(drafts.scores == expected.scores);
    }
    SetFusedInstructionSet("");
  }
}

TEST_CASE("cache: a worked example of a mixed row") {
  //   LM: a b (ln P -0.75, ln backoff -0.5), b (-0.25) and unigrams. Text: b c five times, and so
  //   after "a b", too, the text has c: a mixed row {c} over the root, since "a b" has no n-gram
  const Vocabulary vocabulary = MakeVocabulary(4, {});
  std::vector<Ngram> ngrams = {{{0, 1}, -0.75f, -0.5f}};
  const float ln[] = {-1.0f, -2.0f, -3.0f, -1.5f};
  for (Symbol symbol = 0; symbol < vocabulary.num_symbols(); ++symbol) {
    ngrams.push_back({{symbol}, symbol < 4 ? ln[symbol] : -9.0f, symbol == 1 ? -0.25f : 0.0f});
  }
  const auto lm = BackoffLm::FromTrie(BuildTrie(vocabulary, ListsOf(3, ngrams)));
  ContextNgram cache(4, 2, 100);
  cache.Update(Tokens{1, 2, 1, 2, 1, 2, 1, 2, 1, 2}, lm.get(), true);
  const double share = cache.weights()[0] * 5 / (5 + 1);  // 5 successors of b, 1 of them different
  Sausage lattice;
  lattice.AddSlot(Tokens{0}, std::vector<float>{0.0f});
  lattice.AddSlot(Tokens{1}, std::vector<float>{0.0f});
  lattice.AddSlot(Tokens{2, 3}, std::vector<float>{0.0f, 0.0f});
  const double a_b = -1.0 - 0.75;
  const double c = a_b + std::log((1 - share) * std::exp(-0.5 - 0.25 - 3.0) + share);
  const double d = a_b + std::log(1 - share) - 0.5 - 0.25 - 1.5;
  const LmState start = lm->StateOfContext({}, true);
  const DraftList drafts = FindDrafts(lattice, lm.get(), start, {}, {&cache, {}});
  REQUIRE(drafts.size() == 2);
  CHECK(drafts.token_ids == (c > d ? Tokens{0, 1, 2, 0, 1, 3} : Tokens{0, 1, 3, 0, 1, 2}));
  CHECK(drafts.scores[0] == doctest::Approx(std::max(c, d)).epsilon(1e-6));
  CHECK(drafts.scores[1] == doctest::Approx(std::min(c, d)).epsilon(1e-6));
}

TEST_CASE("cache: an empty one changes nothing, with an LM") {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const ContextNgram cache(200, 4, 1000);
    const auto lm = RandomLm(&random, 200, 50, 1 + static_cast<int>(seed % 6), 400, false);
    const Sausage lattice = RandomLattice(&random, 50, 16);
    const LmState start = lm->StateOfContext({}, true);
    const DraftList expected = FindDrafts(lattice, lm.get(), start, {});
    const DraftList drafts = FindDrafts(lattice, lm.get(), start, {}, {&cache, {}});
    CHECK(drafts.token_ids == expected.token_ids);
    CHECK(drafts.scores == expected.scores);
  }
}

TEST_CASE("cache: batches give the same on any number of threads, rows as if alone") {
  Random random(3);
  const auto lm = RandomLm(&random, 60, 40, 3, 2000, false);
  std::vector<Sausage> lattices;
  std::vector<std::unique_ptr<ContextNgram>> owned;
  std::vector<const ContextNgram*> caches;
  Tokens contexts;
  std::vector<std::int64_t> offsets = {0};
  while (lattices.size() < 40) {
    const Sausage lattice = RandomLattice(&random, 40, 16);
    if (lattice.num_slots() != 4) continue;
    lattices.push_back(lattice);
    const Tokens text = RandomText(&random, 40, 100);
    owned.push_back(std::make_unique<ContextNgram>(60, 4, 1000));
    owned.back()->Update(text, lm.get(), true);
    caches.push_back(lattices.size() % 5 == 0 ? nullptr : owned[lattices.size() / 2].get());
    contexts.insert(contexts.end(), text.end() - 5, text.end());
    offsets.push_back(static_cast<std::int64_t>(contexts.size()));
  }
  const ContextsView view = {contexts, offsets, true, caches};
  const DraftBatch one = FindDraftBatch(lattices, lm.get(), view, {8, 0.7}, 1);
  const TreeBatch tree = FindTreeBatch(lattices, lm.get(), view, 0.7, 20, 1);
  for (const int threads : {2, 5}) {
    const DraftBatch drafts = FindDraftBatch(lattices, lm.get(), view, {8, 0.7}, threads);
    CHECK(drafts.token_ids == one.token_ids);
    CHECK(drafts.scores == one.scores);
    const TreeBatch same = FindTreeBatch(lattices, lm.get(), view, 0.7, 20, threads);
    CHECK(same.token_ids == tree.token_ids);
    CHECK(same.log_probs == tree.log_probs);
  }
  for (std::size_t b = 0; b < lattices.size(); ++b) {
    const Tokens context(contexts.begin() + offsets[b], contexts.begin() + offsets[b + 1]);
    const std::vector<std::int64_t> ends = {0, 5};
    const std::vector<const ContextNgram*> own = {caches[b]};
    const std::vector<Sausage> alone = {lattices[b]};
    const DraftBatch drafts =
        FindDraftBatch(alone, lm.get(), {context, ends, true, own}, {8, 0.7}, 1);
    CHECK(std::equal(drafts.scores.begin(), drafts.scores.end(), one.scores.begin() + 8 * b));
  }
}

TEST_CASE("cache: errors") {
  Random random(1);
  const auto lm = RandomLm(&random, 20, 20, 2, 50, false);
  const ContextNgram other(50, 4, 100), small(3, 4, 100);
  Sausage lattice;
  lattice.AddSlot(Tokens{2, 7}, std::vector<float>{0.0f, 1.0f});
  const LmState start;
  CHECK_THROWS_WITH_AS(FindDrafts(lattice, lm.get(), start, {}, {&other, {}}),
                       doctest::Contains("vocabulary of 50 tokens, the LM one of 20"), ValueError);
  CHECK_THROWS_WITH_AS(FindDrafts(lattice, nullptr, start, {}, {&small, {}}),
                       doctest::Contains("token id 7, but the cache"), ValueError);
  CHECK_THROWS_WITH_AS(FindTree(lattice, nullptr, start, 1.0, 5, {&small, {}}),
                       doctest::Contains("token id 7, but the cache"), ValueError);
  CHECK_THROWS_WITH_AS(
      FindDrafts(lattice, nullptr, start, {1, 1.0, Engine::kOpenFst}, {&other, {}}),
      doctest::Contains("use \"fused\""), ValueError);
  const std::vector<Sausage> lattices = {lattice, lattice};
  const std::vector<std::int64_t> offsets = {0, 0, 0};
  const std::vector<const ContextNgram*> caches = {&other};
  CHECK_THROWS_WITH_AS(FindDraftBatch(lattices, nullptr, {{}, offsets, true, caches}, {}, 1),
                       doctest::Contains("caches: 1 for 2 lattices"), ValueError);
}

}  // namespace
}  // namespace lattice_bpd
