// Top-k selection with every instruction set that runs here, against a stable sort.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/half.h"
#include "lattice_bpd/lattice/top_k.h"

namespace lattice_bpd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
using Scores = std::vector<float>;

// Runs a case once with each instruction set, and leaves the best one set.
template <typename Case>
void WithEachInstructionSet(const Case& run) {
  for (const std::string& name : TopKInstructionSets()) {
    SetTopKInstructionSet(name);
    INFO("instruction set ", name);
    run();
  }
  SetTopKInstructionSet("");
}

// `width` elements of `bytes` bytes, `stride` elements apart.
LogitsView OneRow(const void* data, FloatType type, std::size_t columns,
                  std::ptrdiff_t stride = 1) {
  const std::ptrdiff_t bytes = type == FloatType::kFloat32 ? 4 : 2;
  return {data, type, 1, columns, 0, stride * bytes};
}

TopK Select(const LogitsView& logits, std::size_t k, bool log_softmax = false) {
  TopKOptions options;
  options.top_k = static_cast<int>(k);
  options.log_softmax = log_softmax;
  return SelectTopK(logits, options);
}

void CheckSorted(const TopK& best, const Scores& row, std::size_t k) {
  std::vector<TokenId> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
  });
  order.resize(k);
  CHECK(best.token_ids == order);
  Scores scores;
  for (const TokenId token_id : order) scores.push_back(row[static_cast<std::size_t>(token_id)]);
  CHECK(best.scores == scores);
}

void CheckRow(const Scores& row, std::size_t k) {
  CheckSorted(Select(OneRow(row.data(), FloatType::kFloat32, row.size()), k), row, k);
}

// Few levels make ties, many real numbers none; some tokens are masked.
Scores RandomRow(std::size_t columns, std::mt19937* random) {
  const std::uint32_t levels = 1 + (*random)() % 40;
  const bool real = (*random)() % 2 == 0;
  const bool masks = (*random)() % 3 == 0;
  std::normal_distribution<float> normal(0.0f, 5.0f);
  Scores row(columns);
  for (float& logit : row) {
    logit = real ? normal(*random) : static_cast<float>((*random)() % levels) - 20.0f;
    if (masks && (*random)() % 4 == 0) logit = -kInfinity;
  }
  return row;
}

TEST_CASE("random rows around the borders of blocks") {
  WithEachInstructionSet([] {
    std::mt19937 random(1);
    for (const std::size_t center : {1, 16, 64, 128, 512, 1024, 2048}) {
      for (std::size_t columns = center < 3 ? 1 : center - 3; columns < center + 4; ++columns) {
        for (const std::size_t k : {1, 2, 15, 16, 17, 64, 65, 256}) {
          INFO("columns ", columns, " k ", k);
          const Scores row = RandomRow(columns, &random);
          CheckRow(row, std::min<std::size_t>(k, columns));
        }
      }
    }
    for (int i = 0; i < 20; ++i) {
      const Scores row = RandomRow(3000 + random() % 3000, &random);
      CheckRow(row, 1 + random() % row.size());
    }
  });
}

TEST_CASE("rows that are hard for a threshold") {
  WithEachInstructionSet([] {
    for (const std::size_t columns : {63, 64, 65, 1000, 5000}) {
      Scores row(columns);
      for (const float equal : {0.0f, -kInfinity, -kLargest, kLargest, 1e-40f}) {
        std::fill(row.begin(), row.end(), equal);
        CheckRow(row, 1);
        CheckRow(row, 16);
        CheckRow(row, columns);
      }
      std::fill(row.begin(), row.end(), -kInfinity);
      for (const std::size_t at : {std::size_t{0}, columns / 2, columns - 1}) {
        row[at] = -5.0f;
        CheckRow(row, 16);  // fewer finite logits than k
        row[at] = -kInfinity;
      }
      std::iota(row.begin(), row.end(), -7.0f);  // every logit passes
      CheckRow(row, 16);
      std::reverse(row.begin(), row.end());
      CheckRow(row, 16);
      for (std::size_t i = 0; i < columns; ++i) row[i] = i % 2 == 0 ? 0.0f : -0.0f;
      CheckRow(row, 16);
    }
  });
}

TEST_CASE("half-precision rows of any bits, from any address, in any stride") {
  WithEachInstructionSet([] {
    std::mt19937 random(2);
    for (const FloatType type : {FloatType::kFloat16, FloatType::kBFloat16}) {
      for (int i = 0; i < 60; ++i) {
        const std::size_t columns = 1 + random() % 1500;
        const std::size_t stride = i % 3 == 0 ? 1 + random() % 3 : 1;
        const std::size_t offset = random() % 40;
        std::vector<std::uint16_t> bits(offset + columns * stride, 0x7fff);  // NaN between them
        Scores row(columns);
        for (std::size_t c = 0; c < columns; ++c) {
          do {
            std::uint16_t& at = bits[offset + c * stride];
            at = static_cast<std::uint16_t>(random());
            row[c] = type == FloatType::kFloat16 ? Float16ToFloat(at) : BFloat16ToFloat(at);
          } while (!(row[c] < kInfinity));
        }
        const std::size_t k = 1 + random() % columns;
        INFO("case ", i, " columns ", columns, " stride ", stride, " k ", k);
        CheckSorted(
            Select(OneRow(bits.data() + offset, type, columns, static_cast<std::ptrdiff_t>(stride)),
                   k),
            row, k);
      }
    }
  });
}

TEST_CASE("the first NaN or +inf is named at any position") {
  WithEachInstructionSet([] {
    std::mt19937 random(4);
    for (int i = 0; i < 300; ++i) {
      Scores row = RandomRow(1 + random() % 2000, &random);
      const std::size_t k = 1 + random() % std::min<std::size_t>(row.size(), 300);
      std::size_t first = row.size();
      for (std::uint32_t n = 1 + random() % 3; n > 0; --n) {
        const std::size_t at = random() % row.size();
        row[at] = random() % 2 == 0 ? kInfinity : std::copysign(kNan, random() % 2 == 0 ? 1 : -1);
        first = std::min(first, at);
      }
      const std::string what = std::isnan(row[first]) ? "NaN" : "+inf";
      INFO("case ", i, " columns ", row.size(), " k ", k);
      CHECK_THROWS_WITH_AS(Select(OneRow(row.data(), FloatType::kFloat32, row.size()), k),
                           doctest::Contains(StrCat(what, " at row 0, token ", first, ";").c_str()),
                           ValueError);
    }
  });
}

TEST_CASE("log_softmax: right to 1e-6, and the same bits with each instruction set") {
  std::mt19937 random(5);
  for (int i = 0; i < 40; ++i) {
    const Scores row = RandomRow(1 + random() % 5000, &random);
    const float best = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit) - best);
    const double expected = -std::log(sum);
    std::vector<float> scores;
    WithEachInstructionSet([&] {
      scores.push_back(
          Select(OneRow(row.data(), FloatType::kFloat32, row.size()), 1, true).scores[0]);
    });
    INFO("case ", i, " columns ", row.size());
    if (std::isinf(best)) {
      CHECK(scores[0] == best);
    } else {
      CHECK(std::abs(scores[0] - expected) < 1e-6 + 1e-6 * std::abs(expected));
    }
    CHECK(
        std::all_of(scores.begin(), scores.end(), [&](float score) { return score == scores[0]; }));
  }
}

}  // namespace
}  // namespace lattice_bpd
