// The p best paths: an example worked by hand, ties, masked slots, batches.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/draft_batch.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using TokenIds = std::vector<TokenId>;
using Slot = std::pair<TokenIds, std::vector<float>>;

Sausage Lattice(const std::vector<Slot>& slots) {
  Sausage sausage;
  for (const Slot& slot : slots) sausage.AddSlot(slot.first, slot.second);
  return sausage;
}

DraftList Find(const Sausage& sausage, const BackoffLm* lm, const TokenIds& context, int num_drafts,
               double alpha = 1.0) {
  DraftOptions options;
  options.num_drafts = num_drafts;
  options.alpha = alpha;
  const LmState start = lm == nullptr ? LmState{} : lm->StateOfContext(context, true);
  return FindDrafts(sausage, lm, start, options);
}

TEST_CASE("worked example: heads, n-grams and backoffs by hand") {
  //   slot 0: b 1.0, c 1.5     slot 1: a 0.5, c 0.25     context: a, so the history is <s> a
  const auto lm = ExampleLm();
  const Sausage lattice = Lattice({{{1, 2}, {1.0f, 1.5f}}, {{0, 2}, {0.5f, 0.25f}}});
  const DraftList drafts = Find(lattice, lm.get(), {0}, 16, 0.5);
  REQUIRE(drafts.size() == 4);
  CHECK(drafts.token_ids == TokenIds{1, 2, 1, 0, 2, 0, 2, 2});
  // b c: <s> a b is -.375; a b c is -.125
  CHECK(drafts.scores[0] == 1.0 + 0.25 + 0.5 * (-0.375 - 0.125));
  // b a: <s> a b; then backoffs of (a b) and (b), and a
  CHECK(drafts.scores[1] == 1.0 + 0.5 + 0.5 * (-0.375 + (-0.125 - 0.25 - 1.0)));
  // c a: backoffs of (<s> a) and (a), and c; then the backoff of c, which is 0, and a
  CHECK(drafts.scores[2] == 1.5 + 0.5 + 0.5 * ((-1.25 - 0.5 - 2.0) + (0.0 - 1.0)));
  CHECK(drafts.scores[3] == 1.5 + 0.25 + 0.5 * ((-1.25 - 0.5 - 2.0) + (0.0 - 2.0)));
  CHECK(Find(lattice, lm.get(), {0}, 1, 0.5).token_ids == TokenIds{1, 2});
}

TEST_CASE("an explicit n-gram hides a better backoff") {
  // ln P(b | a) is given as -9, while backing off would cost -.5 - 1.5 = -2.
  std::vector<Ngram> ngrams = ExampleNgrams();
  ngrams.resize(8);
  ngrams[6].log_prob = -9.0f;
  const auto lm = BackoffLm::FromTrie(BuildTrie(MakeVocabulary(3, {}), ListsOf(3, ngrams)));
  const DraftList drafts = Find(Lattice({{{1}, {0.0f}}}), lm.get(), {0}, 1);
  CHECK(drafts.scores[0] == -9.0);
}

TEST_CASE("without an LM the heads alone count") {
  const Sausage lattice = Lattice({{{4, 9}, {1.0f, 0.0f}}, {{7, 8}, {0.5f, 0.25f}}});
  const DraftList drafts = Find(lattice, nullptr, {}, 3);
  CHECK(drafts.token_ids == TokenIds{4, 7, 4, 8, 9, 7});
  CHECK(drafts.scores == std::vector<double>{1.5, 1.25, 0.5});
}

TEST_CASE("ties: the smaller token id at the first position where paths differ, at every p") {
  // All 27 paths tie; the list is the lexicographic one whatever p cuts off.
  const Sausage lattice =
      Lattice({{{8, 2, 5}, {0, 0, 0}}, {{7, 1, 3}, {0, 0, 0}}, {{9, 0, 4}, {1, 1, 1}}});
  const TokenIds slots[3] = {{2, 5, 8}, {1, 3, 7}, {0, 4, 9}};
  TokenIds all;
  for (const TokenId x : slots[0]) {
    for (const TokenId y : slots[1]) {
      for (const TokenId z : slots[2]) all.insert(all.end(), {x, y, z});
    }
  }
  for (int p = 1; p <= 28; ++p) {
    const DraftList drafts = Find(lattice, nullptr, {}, p);
    INFO("p ", p);
    CHECK(drafts.size() == static_cast<std::size_t>(std::min(p, 27)));
    CHECK(drafts.token_ids == TokenIds(all.begin(), all.begin() + 3 * std::min(p, 27)));
  }
}

TEST_CASE("masked: never chosen; a slot of nothing else ends the drafts") {
  const auto lm = ExampleLm();
  const Sausage one = Lattice({{{0, 1}, {-kInfinity, -5.0f}}});
  CHECK(Find(one, lm.get(), {}, 4).token_ids == TokenIds{1});
  const Slot masked = {{2, 0}, {-kInfinity, -kInfinity}};
  const Slot open = {{1, 0}, {3.0f, 0.0f}};
  const DraftList drafts = Find(Lattice({open, masked, open}), lm.get(), {}, 3);
  const DraftList alone = Find(Lattice({open}), lm.get(), {}, 3);
  CHECK(drafts.num_slots == 1);
  CHECK(drafts.token_ids == alone.token_ids);
  CHECK(drafts.scores == alone.scores);
  CHECK(Find(Lattice({masked, open}), lm.get(), {}, 3).size() == 0);
}

TEST_CASE("no slot: no draft") {
  for (const Engine engine : {Engine::kFused, Engine::kOpenFst}) {
    const DraftList drafts = FindDrafts(Sausage(), ExampleLm().get(), {}, {5, 1.0, engine});
    CHECK(drafts.size() == 0);
    CHECK(drafts.token_ids.empty());
  }
}

TEST_CASE("options and vocabularies that do not fit") {
  const auto lm = ExampleLm();
  const Sausage lattice = Lattice({{{0, 7}, {0, 0}}});
  using doctest::Contains;
  CHECK_THROWS_WITH_AS(Find(lattice, lm.get(), {}, 1), Contains("token id 7"), ValueError);
  CHECK_THROWS_WITH_AS(Find(lattice, nullptr, {}, 0), Contains("num_drafts is 0"), ValueError);
  CHECK_THROWS_AS(Find(lattice, nullptr, {}, kMaxDrafts + 1), ValueError);
  CHECK_THROWS_WITH_AS(Find(lattice, nullptr, {}, 1, std::nan("")), Contains("alpha"), ValueError);
  CHECK_THROWS_AS(Find(lattice, nullptr, {}, 1, -2e6), ValueError);
  CHECK_THROWS_WITH_AS(ParseEngine("fast"), Contains("\"fast\""), ValueError);
  CHECK(ParseEngine("auto") == Engine::kAuto);
}

TEST_CASE("batch: rows of their own context, padded after their drafts") {
  const auto lm = ExampleLm();
  const std::vector<Sausage> lattices = {Lattice({{{1, 2}, {0, 0}}}), Lattice({{{1}, {0}}})};
  const TokenIds token_ids = {2, 0};
  const std::vector<std::int64_t> offsets = {0, 2, 2};
  DraftOptions options;
  options.num_drafts = 3;
  const DraftBatch batch = FindDraftBatch(lattices, lm.get(), {token_ids, offsets, true}, options);
  CHECK(batch.counts == std::vector<std::int32_t>{2, 1});
  CHECK(batch.token_ids == TokenIds{1, 2, kPadToken, 1, kPadToken, kPadToken});
  // Row 0: b and c after c a. Row 1: b after <s>.
  CHECK(batch.scores == std::vector<float>{-0.25f, -0.5f - 2.0f, -kInfinity, -0.875f - 1.5f,
                                           -kInfinity, -kInfinity});
  const std::vector<std::int64_t> short_offsets = {0, 2};
  const std::vector<std::int64_t> long_offsets = {0, 2, 3};
  for (const std::vector<std::int64_t>& bad : {short_offsets, long_offsets}) {
    CHECK_THROWS_AS(FindDraftBatch(lattices, lm.get(), {token_ids, bad, true}, options),
                    ValueError);
  }
}

}  // namespace
}  // namespace lattice_bpd
