// Top-k selection from rows of any float type and any strides.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lattice/top_k.h"

namespace lattice_bpd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
using TokenIds = std::vector<TokenId>;
using Scores = std::vector<float>;

LogitsView Rows(const Scores& values, std::size_t rows) {
  const std::size_t columns = values.size() / rows;
  return {values.data(),
          FloatType::kFloat32,
          rows,
          columns,
          static_cast<std::ptrdiff_t>(columns * sizeof(float)),
          sizeof(float)};
}

TopK Select(const LogitsView& logits, int top_k, bool log_softmax = false) {
  TopKOptions options;
  options.top_k = top_k;
  options.log_softmax = log_softmax;
  return SelectTopK(logits, options);
}

TEST_CASE("by falling score, equal scores by rising token id") {
  const Scores row = {1, 3, 2, 3, 0, 3};
  const TopK best = Select(Rows(row, 1), 4);
  CHECK(best.token_ids == TokenIds{1, 3, 5, 2});
  CHECK(best.scores == Scores{3, 3, 3, 2});
  CHECK(Select(Rows(row, 1), 2).token_ids == TokenIds{1, 3});  // the tie at rank 2 is cut
  CHECK(Select(Rows(row, 1), 6).token_ids == TokenIds{1, 3, 5, 2, 0, 4});
  CHECK(Select(Rows({0.0f, -0.0f, 0.0f}, 1), 2).token_ids == TokenIds{0, 1});
}

TEST_CASE("random rows with many ties: as sorting finds them") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const std::size_t columns = 1 + random() % 80;
    const std::size_t rows = 1 + random() % 3;
    const int levels = 1 + static_cast<int>(random() % 8);
    Scores values(rows * columns);
    for (float& value : values) {
      value = static_cast<float>(static_cast<int>(random() % levels)) - 3.0f;
      if (random() % 8 == 0) value = -kInfinity;
    }
    const int k = 1 + static_cast<int>(random() % columns);
    const TopK best = Select(Rows(values, rows), k);
    INFO("seed ", seed);
    REQUIRE(best.token_ids.size() == rows * k);
    for (std::size_t r = 0; r < rows; ++r) {
      const float* row = values.data() + r * columns;
      TokenIds order(columns);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](TokenId a, TokenId b) { return row[a] > row[b]; });
      for (int i = 0; i < k; ++i) {
        CHECK(best.token_ids[r * k + i] == order[i]);
        CHECK(best.scores[r * k + i] == row[order[i]]);
      }
    }
  }
}

TEST_CASE("strides: every second column, columns and rows backwards, a transposed matrix") {
  const Scores values = {0, 10, 1, 11, 2, 12,  //
                         5, 10, 4, 11, 3, 12};
  LogitsView view = Rows(values, 2);
  view.columns = 3;
  view.column_stride = 2 * sizeof(float);
  CHECK(Select(view, 2).token_ids == TokenIds{2, 1, 0, 1});
  CHECK(Select(view, 2).scores == Scores{2, 1, 5, 4});

  LogitsView backwards = view;
  backwards.data = values.data() + 10;  // value 3, the last one of the last row
  backwards.column_stride = -view.column_stride;
  backwards.row_stride = -view.row_stride;
  CHECK(Select(backwards, 1).token_ids == TokenIds{2, 0});
  CHECK(Select(backwards, 1).scores == Scores{5, 2});

  LogitsView transposed = Rows(values, 2);
  std::swap(transposed.rows, transposed.columns);
  std::swap(transposed.row_stride, transposed.column_stride);
  CHECK(Select(transposed, 1).token_ids == TokenIds{1, 0, 1, 0, 1, 0});
}

TEST_CASE("half-precision rows") {
  const std::vector<std::uint16_t> half = {0x3c00, 0xc000, 0x7bff, 0xfc00};  // 1 -2 65504 -inf
  LogitsView view = {half.data(), FloatType::kFloat16, 1, 4, 8, 2};
  CHECK(Select(view, 3).token_ids == TokenIds{2, 0, 1});
  CHECK(Select(view, 3).scores == Scores{65504, 1, -2});
  const std::vector<std::uint16_t> brain = {0x3f80, 0xc040, 0x4120};  // 1 -3 10
  view = {brain.data(), FloatType::kBFloat16, 1, 3, 6, 2};
  CHECK(Select(view, 3).scores == Scores{10, 1, -3});
}

TEST_CASE("log_softmax: log probabilities over the whole row, not the k best alone") {
  const Scores row = {0.0f, std::log(2.0f), std::log(5.0f), -kInfinity};
  const TopK best = Select(Rows(row, 1), 2, true);  // 5/8 and 2/8
  CHECK(best.scores[0] == doctest::Approx(std::log(5.0 / 8.0)).epsilon(1e-6));
  CHECK(best.scores[1] == doctest::Approx(std::log(2.0 / 8.0)).epsilon(1e-6));
  const TopK masked = Select(Rows({-kInfinity, -kInfinity}, 1), 2, true);
  CHECK(masked.scores == Scores{-kInfinity, -kInfinity});
  const TopK large = Select(Rows({3e38f, -3e38f}, 1), 2, true);
  CHECK(large.scores[0] == 0.0f);
}

TEST_CASE("NaN and +inf are refused at any position") {
  for (const float bad : {kNan, -kNan, kInfinity}) {
    for (std::size_t at = 0; at < 12; ++at) {
      for (int k = 1; k <= 6; ++k) {
        Scores values = {9, 8, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9};
        values[at] = bad;
        INFO("at ", at, " k ", k);
        CHECK_THROWS_WITH_AS(Select(Rows(values, 2), k),
                             doctest::Contains(StrCat("row ", at / 6, ", token ", at % 6).c_str()),
                             ValueError);
      }
    }
  }
}

TEST_CASE("top_k outside 1..V") {
  const Scores row = {1, 2};
  CHECK_THROWS_WITH_AS(Select(Rows(row, 1), 0), doctest::Contains("top_k is 0"), ValueError);
  CHECK_THROWS_WITH_AS(Select(Rows(row, 1), 3), doctest::Contains("expected 1..2"), ValueError);
  CHECK_THROWS_AS(Select(Rows(row, 1), -1), ValueError);
}

TEST_CASE("threads share the rows: the same candidates, and the error of the first bad row") {
  std::mt19937 random(1);
  const std::size_t rows = 61, columns = 40'000;  // enough work for four threads
  Scores values(rows * columns);
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 4096));
  TopKOptions options;
  for (const bool log_softmax : {false, true}) {
    options.log_softmax = log_softmax;
    options.threads = 1;
    const TopK one = SelectTopK(Rows(values, rows), options);
    for (const int threads : {0, 2, 3, 4, 64}) {
      options.threads = threads;
      const TopK shared = SelectTopK(Rows(values, rows), options);
      CHECK(shared.token_ids == one.token_ids);
      CHECK(shared.scores == one.scores);
    }
  }
  for (const std::size_t row : {5, 6, 30, 60}) values[row * columns + 7] = kNan;
  for (int repeat = 0; repeat < 20; ++repeat) {
    CHECK_THROWS_WITH_AS(SelectTopK(Rows(values, rows), options),
                         doctest::Contains("NaN at row 5, token 7;"), ValueError);
  }
  options.threads = -1;
  CHECK_THROWS_AS(SelectTopK(Rows(values, rows), options), ValueError);
}

}  // namespace
}  // namespace lattice_bpd
