// The sausage lattice's rules.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lattice/sausage.h"

namespace lattice_bpd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using TokenIds = std::vector<TokenId>;
using Scores = std::vector<float>;

void Add(Sausage* sausage, const TokenIds& token_ids, const Scores& scores) {
  sausage->AddSlot(token_ids, scores);
}

TokenIds Ids(const Sausage& sausage, std::size_t slot) {
  const Span<TokenId> ids = sausage.token_ids(slot);
  return {ids.begin(), ids.end()};
}

TEST_CASE("slots are sorted by falling score, then by rising token id") {
  Sausage sausage;
  Add(&sausage, {7, 3, 5, 1}, {1.0f, 2.0f, 1.0f, -4.0f});
  Add(&sausage, {9}, {0.0f});
  CHECK(sausage.num_slots() == 2);
  CHECK(Ids(sausage, 0) == TokenIds{3, 5, 7, 1});
  CHECK(sausage.scores(0)[3] == -4.0f);
  CHECK(sausage.width(0) == 4);
  CHECK(sausage.width(1) == 1);
  CHECK(sausage.max_token_id() == 9);
}

TEST_CASE("masked candidates are dropped; a slot of nothing else ends the lattice") {
  Sausage sausage;
  Add(&sausage, {4, 2, 8}, {-kInfinity, 1.0f, -kInfinity});
  CHECK(Ids(sausage, 0) == TokenIds{2});
  Add(&sausage, {8, 4}, {-kInfinity, -kInfinity});
  Add(&sausage, {1}, {0.0f});
  CHECK(sausage.num_slots() == 1);
  CHECK(sausage.num_candidates() == 1);
  CHECK(sausage.CountPaths(10) == 1);
  CHECK_THROWS_WITH_AS(Add(&sausage, {-1}, {0.0f}), doctest::Contains("in slot 3"), ValueError);
  sausage.Clear();
  Add(&sausage, {1}, {0.0f});
  CHECK(sausage.num_slots() == 1);  // open again
}

TEST_CASE("paths are counted up to a limit, without overflow") {
  Sausage sausage;
  CHECK(sausage.CountPaths(10) == 0);
  Add(&sausage, {0, 1, 2}, {0, 0, 0});
  Add(&sausage, {0, 1}, {0, 0});
  CHECK(sausage.CountPaths(100) == 6);
  CHECK(sausage.CountPaths(7) == 6);
  CHECK(sausage.CountPaths(6) == 6);
  CHECK(sausage.CountPaths(5) == 5);
  CHECK(sausage.CountPaths(1) == 1);
  for (int slot = 0; slot < 200; ++slot) Add(&sausage, {0, 1}, {0, 0});
  const std::size_t limit = std::numeric_limits<std::size_t>::max();
  CHECK(sausage.CountPaths(limit) == limit);
  CHECK(sausage.CountPaths(1u << 20) == 1u << 20);
}

TEST_CASE("what is no slot is refused, with the slot's number") {
  Sausage sausage;
  Add(&sausage, {0}, {0.0f});
  using doctest::Contains;
  CHECK_THROWS_WITH_AS(Add(&sausage, {}, {}), Contains("slot 1 has 0 token ids"), ValueError);
  CHECK_THROWS_WITH_AS(Add(&sausage, {1, 2}, {0.0f}), Contains("2 token ids and 1"), ValueError);
  CHECK_THROWS_WITH_AS(Add(&sausage, {1, -2}, {0, 0}), Contains("token id -2"), ValueError);
  CHECK_THROWS_WITH_AS(Add(&sausage, {1, 2}, {0, kInfinity}), Contains("inf"), ValueError);
  CHECK_THROWS_WITH_AS(Add(&sausage, {1, 2}, {0, std::numeric_limits<float>::quiet_NaN()}),
                       Contains("nan"), ValueError);
}

TEST_CASE("a token occurs once in a slot") {
  Sausage sausage;
  CHECK_THROWS_WITH_AS(Add(&sausage, {5, 6, 5}, {0, 1, 2}), doctest::Contains("token 5"),
                       ValueError);
}

TEST_CASE("the number of slots is limited") {
  Sausage sausage;
  for (std::size_t slot = 0; slot < kMaxSlots; ++slot) Add(&sausage, {0}, {0.0f});
  CHECK_THROWS_AS(Add(&sausage, {0}, {0.0f}), ValueError);
}

TEST_CASE("as FST bytes: something, for no slot too") {
  Sausage sausage;
  CHECK_FALSE(SausageToFstBytes(sausage).empty());
  Add(&sausage, {3, 4}, {1, 2});
  CHECK_FALSE(SausageToFstBytes(sausage).empty());
}

}  // namespace
}  // namespace lattice_bpd
