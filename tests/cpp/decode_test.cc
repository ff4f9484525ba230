// What decoding learns: costs of steps, how often nodes are kept, where texts repeat themselves.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/decode/calibration.h"
#include "lattice_bpd/decode/repeats.h"
#include "lattice_bpd/decode/step_costs.h"
#include "lattice_bpd/decode/suffix_index.h"

namespace lattice_bpd {
namespace {

using Sizes = std::vector<std::int64_t>;

double At(StepCosts* costs, std::int64_t size) { return costs->Seconds({size}, false)[0]; }

TEST_CASE("costs without times are refused") {
  StepCosts costs;
  CHECK_THROWS_AS(costs.Seconds({1}, false), ValueError);
  CHECK_THROWS_AS(costs.Add({{-1, 1.0, 1}}, false), ValueError);
  CHECK_THROWS_AS(costs.Add({{1, 1.0, 0}}, false), ValueError);
  CHECK_THROWS_AS(costs.Add({{1, std::nan(""), 1}}, false), ValueError);
}

TEST_CASE("costs rise, and are linear between sizes") {
  StepCosts costs;
  for (int i = 0; i < 200; ++i) {
    costs.Add({{4, 2.0, 1}}, false);
    costs.Add({{8, 4.0, 1}}, false);
    costs.Add({{12, 3.0, 1}}, false);  // no size costs more than a larger one
  }
  const auto seconds = costs.Seconds({0, 4, 6, 8, 12}, false);
  CHECK(seconds[0] == seconds[1]);
  CHECK(seconds[1] == doctest::Approx(2.0).epsilon(0.03));
  CHECK(seconds[2] == doctest::Approx(0.5 * (seconds[1] + seconds[3])));
  CHECK(seconds[3] == seconds[4]);
  const double slope = (seconds[4] - seconds[1]) / 8.0;
  CHECK(At(&costs, 112) == doctest::Approx(seconds[4] + 100.0 * slope).epsilon(1e-6));
  CHECK(costs.Count(4) == 200);
  CHECK(costs.Count(5) == 0);
}

TEST_CASE("what looking costs is told apart") {
  StepCosts costs;
  for (int i = 0; i < 300; ++i) {
    costs.Add({{8, 1.2, 1}}, true);  // a fifth longer for being looked at
    costs.Add({{8, 1.0, 15}}, false);
    costs.Add({{18, 1.8, 1}}, true);  // this size never goes unobserved
  }
  CHECK(At(&costs, 8) == doctest::Approx(1.0).epsilon(0.03));
  CHECK(At(&costs, 18) == doctest::Approx(1.5).epsilon(0.05));
}

TEST_CASE("sizes that took turns are compared, whatever the pace of the machine") {
  StepCosts by_turns, apart;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> pace(0.8, 1.25);
  for (int i = 0; i < 60; ++i) {
    const double now = pace(random), later = pace(random);
    by_turns.Add({{8, now, 8}, {12, 1.03 * now, 8}}, false);
    apart.Add({{8, now, 8}}, false);
    apart.Add({{12, 1.03 * later, 8}}, false);
  }
  const double wanted = 1.03;
  CHECK(At(&by_turns, 12) / At(&by_turns, 8) == doctest::Approx(wanted).epsilon(0.005));
  CHECK(std::abs(At(&apart, 12) / At(&apart, 8) - wanted) > 0.005);
  CHECK(by_turns.Count(12) == 480);
  CHECK_THROWS_AS(by_turns.Add({{8, 1.0, 8}, {12, 1.0, 0}}, false), ValueError);
  CHECK(by_turns.Count(8) == 480);  // all or none
}

TEST_CASE("many sizes are bounded, and nothing overflows") {
  StepCosts costs;
  for (std::int64_t size = 0; size < 300; ++size) {
    for (int i = 0; i < 3; ++i) costs.Add({{size, 1e-3 * (1.0 + size), 1}}, size % 3 == 0);
  }
  costs.Add({{1 << 19, 0.0, 1}}, false);
  costs.Add({{1 << 19, 1e9, 1}}, false);
  for (const bool drawn : {false, true}) {
    double before = 0.0;
    for (const double seconds : costs.Seconds({0, 1, 7, 63, 299, 4096}, drawn)) {
      CHECK(std::isfinite(seconds));
      CHECK(seconds >= before);
      before = seconds;
    }
  }
}

TEST_CASE("matches are those that a search by hand finds") {
  using Ids = std::vector<std::int64_t>;
  std::mt19937 random(1);
  for (const std::size_t longest : {1u, 3u, 8u}) {
    SuffixIndex index(longest);
    Ids text;
    for (int step = 0; step < 200; ++step) {
      Ids path(random() % 3);
      for (auto& token : path) token = random() % 3;
      Ids whole = text;
      whole.insert(whole.end(), path.begin(), path.end());
      Match wanted;
      for (std::size_t size = 1; size <= std::min(longest, whole.size()); ++size) {
        for (std::size_t end = size; end < text.size(); ++end) {
          if (std::equal(whole.end() - size, whole.end(), text.begin() + end - size)) {
            wanted = {end, size};
          }
        }
      }
      const Match found = index.Find(path);
      CHECK(found.size == wanted.size);
      CHECK(found.place == wanted.place);
      if (found.size > 0) {
        for (const std::int64_t token : index.Follow(found.place, 7, path)) {
          CHECK(token == whole[whole.size() - (text.size() + path.size() - found.place)]);
          whole.push_back(token);
        }
      }
      text.push_back(random() % 3);
      index.Append(text.back());
    }
    CHECK(index.tokens() == text);
    CHECK_THROWS_AS(index.Follow(200, 1, {}), ValueError);
  }
  CHECK_THROWS_AS(SuffixIndex(0), ValueError);
}

TEST_CASE("trees go on where the text repeats itself") {
  const std::vector<std::int64_t> text = {1, 2, 3, 1, 2, 3, 1};
  RepeatingText repeating;
  repeating.Append(text);
  PrefixTree tree(1, 3);  // 2 with 0.6, 7 with 0.2
  tree.Add(0, 2, std::log(0.6F));
  tree.Add(0, 7, std::log(0.2F));
  const auto found = repeating.Extend(tree, 2, 40, 4);
  REQUIRE(found);
  CHECK(found->token_ids() == (std::vector<std::int64_t>{1, 2, 3, 7, 1}));
  CHECK(found->parents() == (std::vector<NodeNumber>{-1, 0, 1, 0, 2}));
  CHECK(found->nodes()[2].log_prob == doctest::Approx(std::log(0.3)));
  CHECK_FALSE(repeating.Extend(tree, 2, 1, 2));  // no room for more
  CHECK_FALSE(repeating.Extend(tree, 2, 0, 2));
  CHECK_FALSE(RepeatingText().Extend(tree, 2, 40, 4));
  PrefixTree unknown(1, 2);
  unknown.Add(0, 2);
  CHECK_THROWS_AS(repeating.Extend(unknown, 2, 40, 4), ValueError);
  CHECK_THROWS_AS(repeating.Extend(PrefixTree(), 2, 40, 4), ValueError);
}

TEST_CASE("what trees promise is weighed by what was kept") {
  Calibration calibration;
  const std::vector<float> log_probs = {std::log(0.9F), std::log(0.9F), std::log(0.3F), -40.0F};
  const auto fresh = calibration.Expected(log_probs);
  CHECK(fresh[1] == doctest::Approx(1.8).epsilon(1e-5));
  CHECK(fresh[2] == doctest::Approx(2.1).epsilon(1e-5));
  const std::vector<std::uint8_t> kept = {1, 0, 0, 0};
  for (int i = 0; i < 300; ++i) calibration.Add(log_probs, kept);
  const auto learned = calibration.Probabilities(log_probs);
  CHECK(learned[0] == doctest::Approx(0.5).epsilon(0.02));
  CHECK(learned[1] == learned[0]);
  CHECK(learned[2] < 0.02);
  CHECK(learned[3] <= learned[2]);
  const std::vector<std::uint8_t> few = {1};
  CHECK_THROWS_AS(calibration.Add(log_probs, few), ValueError);
  CHECK(calibration.Expected({}).empty());
}

}  // namespace
}  // namespace lattice_bpd
