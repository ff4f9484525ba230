// The inputs of a call from trees, following the target, moving slots of a cache.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/verify/call_layout.h"
#include "lattice_bpd/verify/follow_greedy.h"
#include "lattice_bpd/verify/move_slots.h"
#include "lattice_bpd/verify/prefix_tree.h"

namespace lattice_bpd {
namespace {

using Ids = std::vector<std::int64_t>;
using Nodes = std::vector<NodeNumber>;

IntegerView<std::int64_t> Rows(const Ids& values, std::size_t columns) {
  return {values.data(), values.size() / columns, columns, static_cast<std::ptrdiff_t>(columns), 1};
}

// Exact token 3; drafts 5 7 9, 5 7 2, 1 7.
PrefixTree Example() {
  const Ids drafts = {5, 7, 9, 5, 7, 2, 1, 7, -1};
  return TreeOfDrafts(3, Rows(drafts, 3));
}

TEST_CASE("a tree is a row") {
  const PrefixTree tree = Example(), lone = TreeOfDrafts(4, Rows({-1}, 1));
  const std::vector<const PrefixTree*> trees = {&tree, &lone};
  const Ids starts = {10, 20};
  Ids token_ids(2 * 7, -5), positions(2 * 7, -5);
  LayOutTrees(trees, starts, 7, token_ids.data(), positions.data());
  CHECK(token_ids == (Ids{3, 5, 7, 9, 2, 1, 7, 4, 0, 0, 0, 0, 0, 0}));
  CHECK(positions == (Ids{10, 11, 12, 13, 13, 11, 12, 20, 20, 20, 20, 20, 20, 20}));
  CHECK_THROWS_AS(LayOutTrees(trees, starts, 6, token_ids.data(), positions.data()), ValueError);
  CHECK_THROWS_AS(LayOutTrees(trees, {}, 7, token_ids.data(), positions.data()), ValueError);
}

TEST_CASE("additive masks say what node masks say") {
  const PrefixTree tree = Example(), lone = TreeOfDrafts(4, Rows({6, 6}, 2));
  const std::vector<const PrefixTree*> trees = {&tree, &lone};
  const std::size_t size = 8, slots = 13;
  const Ids starts = {3, 5};
  std::vector<std::uint8_t> sees(2 * size * size, 7);
  WriteNodeMasks(trees, size, sees.data());
  std::vector<float> masks(2 * size * slots, 7.0F);
  WriteAdditiveMasks(trees, starts, size, slots, -9.0F, masks.data());
  for (std::size_t row = 0; row < 2 * size; ++row) {
    const auto width = static_cast<std::size_t>(starts[row / size]);
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const bool is_new = slot >= width && slot < width + size;
      const bool seen = slot < width || (is_new && sees[row * size + slot - width] == 1);
      CHECK(masks[row * slots + slot] == (seen ? 0.0F : -9.0F));
    }
  }
  CHECK_THROWS_AS(WriteAdditiveMasks(trees, starts, size, 12, -9.0F, masks.data()), ValueError);
  CHECK_THROWS_AS(WriteAdditiveMasks(trees, {}, size, slots, -9.0F, masks.data()), ValueError);
}

TEST_CASE("every path is a row") {
  const PrefixTree tree = Example(), lone = TreeOfDrafts(4, Rows({-1}, 1));
  const Ids starts = {10, 20};
  const RowLayout rows = LayOutRows(std::vector<const PrefixTree*>{&tree, &lone}, starts);
  CHECK(rows.num_rows == 4u);
  CHECK(rows.size == 4u);
  CHECK(rows.token_ids == (Ids{3, 5, 7, 9, 4, 0, 0, 0, 3, 5, 7, 2, 3, 1, 7, 0}));
  CHECK(rows.positions == (Ids{10, 11, 12, 13, 20, 20, 20, 20, 10, 11, 12, 13, 10, 11, 12, 12}));
  CHECK(rows.sequences == (Ids{0, 1, 0, 0}));
  CHECK(rows.node_rows == (std::vector<Ids>{{12, 9, 10, 3, 11, 13, 14}, {4}}));
  const PrefixTree nothing;
  CHECK_THROWS_AS(LayOutRows(std::vector<const PrefixTree*>{&nothing}, Ids{1}), ValueError);
}

TEST_CASE("argmax takes the first of equals") {
  std::mt19937 random(3);
  for (std::size_t size = 1; size < 70; ++size) {
    std::vector<float> values(size);
    for (float& value : values) value = static_cast<float>(random() % 5);
    std::size_t best = 0;
    for (std::size_t i = 1; i < size; ++i) best = values[i] > values[best] ? i : best;
    CHECK(Argmax(values) == static_cast<std::int64_t>(best));
    values[random() % size] = std::nanf("");
    CHECK(Argmax(values) == -1);
  }
  const float low = -std::numeric_limits<float>::infinity();
  CHECK(Argmax(std::vector<float>(20, low)) == 0);
  CHECK(Argmax(std::vector<float>{low, -low, 1.0F, -low}) == 1);
}

TEST_CASE("walks as far as the target agrees") {
  const PrefixTree tree = Example();
  const std::size_t vocab_size = 10;
  std::vector<float> logits(8 * vocab_size);
  const auto say = [&](std::size_t row, std::size_t token) { logits[row * 10 + token] = 1.0F; };
  say(7, 5);  // after the exact token
  say(6, 7);
  say(5, 2);
  say(3, 8);                               // after 5 7 2: no draft continues
  logits[4 * vocab_size] = std::nanf("");  // after 5 7 9, which is not read
  const Ids node_rows = {7, 6, 5, 4, 3, 2, 1};
  const Followed followed = FollowGreedy(tree, {logits.data(), 8, vocab_size}, {node_rows});
  CHECK(followed.nodes == (Nodes{0, 1, 2, 4}));
  CHECK(followed.token_ids == (Ids{5, 7, 2, 8}));
  CHECK(followed.end == 3);
  const Ids few = {7};
  logits[5 * vocab_size] = std::nanf("");
  CHECK_THROWS_AS(FollowGreedy(tree, {logits.data(), 8, vocab_size}, {node_rows}), ValueError);
  CHECK_THROWS_AS(FollowGreedy(tree, {logits.data(), 7, vocab_size}, {node_rows}), ValueError);
  CHECK_THROWS_AS(FollowGreedy(tree, {logits.data(), 8, vocab_size}, {few}), ValueError);
}

TEST_CASE("nodes of a row have consecutive rows of logits") {
  const PrefixTree tree = Example();
  std::vector<float> logits(9 * 10);
  logits[2 * 10 + 1] = logits[(2 + 5) * 10 + 3] = 1.0F;
  NodeRows node_rows;
  node_rows.first = 2;
  const Followed followed = FollowGreedy(tree, {logits.data(), 9, 10}, node_rows);
  CHECK(followed.nodes == (Nodes{0, 5}));
  CHECK(followed.token_ids == (Ids{1, 3}));
  CHECK(followed.end == 7);
  CHECK_THROWS_AS(FollowGreedy(PrefixTree(), {logits.data(), 9, 10}, node_rows), ValueError);
}

TEST_CASE("copies what was there before") {
  // Two layers, two sequences, one head, five slots of two bytes.
  std::vector<unsigned char> bytes(2 * 2 * 5 * 2);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  const SlotBuffer buffer = {bytes.data(), 2, 2, 1, 5, 2};
  MoveSlots(buffer, {1, 1}, {{2, 1, 4}, {3}});
  const std::vector<unsigned char> wanted = {0,  1,  4,  5,  2,  3,  8,  9,  8,  9,  10, 11, 16, 17,
                                             14, 15, 16, 17, 18, 19, 20, 21, 24, 25, 22, 23, 28, 29,
                                             28, 29, 30, 31, 36, 37, 34, 35, 36, 37, 38, 39};
  CHECK(bytes == wanted);
  CHECK_THROWS_AS(MoveSlots(buffer, {3, 0}, {{0, 1, 2}, {}}), ValueError);
  CHECK_THROWS_AS(MoveSlots(buffer, {0, 0}, {{5}, {}}), ValueError);
  CHECK_THROWS_AS(MoveSlots(buffer, {0, 0}, {{1}}), ValueError);
  CHECK(bytes == wanted);
}

TEST_CASE("copies slots of rows to other rows") {
  // Two layers, three rows, two heads, five slots of one byte.
  std::vector<unsigned char> bytes(2 * 3 * 2 * 5);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  const std::vector<unsigned char> before = bytes;
  const SlotBuffer buffer = {bytes.data(), 2, 3, 2, 5, 1};
  CopySlots(buffer, {{0, 1, 1, 3}, {1, 2, 2, 4}, {1, 1, 0, 5}});
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const auto at = [&](std::size_t row, std::size_t head, std::size_t slot) {
      return ((layer * 3 + row) * 2 + head) * 5 + slot;
    };
    for (std::size_t head = 0; head < 2; ++head) {
      for (std::size_t slot = 0; slot < 5; ++slot) {
        CHECK(bytes[at(0, head, slot)] == before[at(0, head, slot)]);
        const bool is_first = slot == 1 || slot == 2;
        CHECK(bytes[at(1, head, slot)] == before[at(is_first ? 0 : 1, head, slot)]);
        const std::size_t second = slot == 2 ? 0 : slot == 3 ? 1 : 2;  // after the first copy
        CHECK(bytes[at(2, head, slot)] == before[at(second, head, slot)]);
      }
    }
  }
  const std::vector<unsigned char> after = bytes;
  CHECK_THROWS_AS(CopySlots(buffer, {{0, 1, 0, 1}, {3, 0, 0, 1}}), ValueError);  // no such row
  CHECK_THROWS_AS(CopySlots(buffer, {{0, 3, 0, 1}}), ValueError);                // nor there
  CHECK_THROWS_AS(CopySlots(buffer, {{0, 1, 3, 6}}), ValueError);                // no such slots
  CHECK_THROWS_AS(CopySlots(buffer, {{0, 1, 3, 2}}), ValueError);
  CHECK(bytes == after);
}

TEST_CASE("writes new slots after each row's own") {
  // Two rows, two heads, three slots of two bytes; heads or slots are nearer to each other.
  for (const bool by_head : {true, false}) {
    std::vector<unsigned char> from(2 * 2 * 3 * 2), to(2 * 2 * 8 * 2, 99);
    std::iota(from.begin(), from.end(), static_cast<unsigned char>(0));
    const SlotRows source = {from.data(), 12, by_head ? 6 : 2, by_head ? 2 : 4};
    const SlotRows target = {to.data(), 32, 16, 2};
    WriteSlots(source, {2, 2, 3, 2}, target, 8, Ids{1, 5});
    for (std::size_t row = 0; row < 2; ++row) {
      for (std::size_t head = 0; head < 2; ++head) {
        for (std::size_t slot = 0; slot < 8; ++slot) {
          const std::size_t start = row == 0 ? 1 : 5, index = slot - start;
          const bool is_new = slot >= start && index < 3;
          const std::size_t first =
              row * 12 + (by_head ? head * 6 + index * 2 : head * 2 + index * 4);
          for (std::size_t byte = 0; byte < 2; ++byte) {
            CHECK(to[((row * 2 + head) * 8 + slot) * 2 + byte] == (is_new ? first + byte : 99));
          }
        }
      }
    }
    const std::vector<unsigned char> before = to;
    CHECK_THROWS_AS(WriteSlots(source, {2, 2, 3, 2}, target, 8, Ids{0, 6}), ValueError);
    CHECK_THROWS_AS(WriteSlots(source, {2, 2, 3, 2}, target, 8, Ids{0, -1}), ValueError);
    CHECK_THROWS_AS(WriteSlots(source, {2, 2, 3, 2}, target, 8, Ids{0}), ValueError);
    CHECK_THROWS_AS(WriteSlots(source, {2, 2, 3, 2}, target, 2, Ids{0, 0}), ValueError);
    CHECK(to == before);
  }
}

}  // namespace
}  // namespace lattice_bpd
