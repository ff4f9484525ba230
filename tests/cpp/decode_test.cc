// What a controller learns: costs of steps, and how often nodes are kept.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/decode/calibration.h"
#include "lattice_bpd/decode/step_costs.h"

namespace lattice_bpd {
namespace {

using Sizes = std::vector<std::int64_t>;

double At(StepCosts* costs, std::int64_t size) { return costs->Seconds({size}, false)[0]; }

TEST_CASE("costs without times are refused") {
  StepCosts costs;
  CHECK_THROWS_AS(costs.Seconds({1}, false), ValueError);
  CHECK_THROWS_AS(costs.Add(-1, 1.0, 1, false), ValueError);
  CHECK_THROWS_AS(costs.Add(1, 1.0, 0, false), ValueError);
  CHECK_THROWS_AS(costs.Add(1, std::nan(""), 1, false), ValueError);
}

TEST_CASE("costs rise, and are linear between sizes") {
  StepCosts costs;
  for (int i = 0; i < 200; ++i) {
    costs.Add(4, 2.0, 1, false);
    costs.Add(8, 4.0, 1, false);
    costs.Add(12, 3.0, 1, false);  // no size costs more than a larger one
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
    costs.Add(8, 1.2, 1, true);  // a fifth longer for being looked at
    costs.Add(8, 1.0, 15, false);
    costs.Add(18, 1.8, 1, true);  // this size never goes unobserved
  }
  CHECK(At(&costs, 8) == doctest::Approx(1.0).epsilon(0.03));
  CHECK(At(&costs, 18) == doctest::Approx(1.5).epsilon(0.05));
}

TEST_CASE("many sizes are bounded, and nothing overflows") {
  StepCosts costs;
  for (std::int64_t size = 0; size < 300; ++size) {
    for (int i = 0; i < 3; ++i) costs.Add(size, 1e-3 * (1.0 + size), 1, size % 3 == 0);
  }
  costs.Add(1 << 19, 0.0, 1, false);
  costs.Add(1 << 19, 1e9, 1, false);
  for (const bool drawn : {false, true}) {
    double before = 0.0;
    for (const double seconds : costs.Seconds({0, 1, 7, 63, 299, 4096}, drawn)) {
      CHECK(std::isfinite(seconds));
      CHECK(seconds >= before);
      before = seconds;
    }
  }
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
