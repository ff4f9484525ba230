#include "lattice_bpd/decode/step_costs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr double kNoise = 0.02;    // variance of the ln of one measured time
constexpr double kDrift = 0.023;   // by which the pace becomes less certain from one to the next
constexpr double kUnknown = 25.0;  // variance of the pace before anything was measured
constexpr double kLooking = 0.02;  // variance of what looking costs
constexpr double kJump = 2.0;      // standard errors beyond which the pace must have jumped
constexpr double kHiccup = 0.5;    // larger surprises count as one of this size
constexpr double kSettled = 1.0;   // .. once the variance of what was expected is below this
constexpr double kCurve = 1.5;     // variance of the smooth function of the size, ..
constexpr double kSmooth = 2.2;    // .. in which sizes matter to each other that differ by so many
                                   // doublings, ..
constexpr double kOwn = 4e-4;      // .. and of what each size has of its own beside it
constexpr double kChange = 3e-4;   // share of those that comes back between two measured times
constexpr double kDare = 0.45;     // standard errors for one of the normal distribution in draws
constexpr double kFar = 1 << 20;   // more draft tokens than any step has
constexpr std::size_t kMostSizes = 64;  // others learn nothing, and are taken from their neighbours

constexpr std::size_t kPace = 0, kLook = 1, kFirst = 2;  // places among the unknowns

// Covariance of two sizes' ln costs before anything was measured.
double Prior(std::int64_t a, std::int64_t b) {
  const double apart = std::log2((a + 1.0) / (b + 1.0)) / kSmooth;
  return kCurve * std::exp(-0.5 * apart * apart) + (a == b ? kOwn : 0.0);
}

// The lower triangle L of a positive definite matrix = L L^T, row by row, n x n.
std::vector<double> Root(std::vector<double> matrix, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k <= i; ++k) {
      double sum = matrix[i * n + k];
      for (std::size_t m = 0; m < k; ++m) sum -= matrix[i * n + m] * matrix[k * n + m];
      matrix[i * n + k] = i == k ? std::sqrt(std::max(sum, 1e-12)) : sum / matrix[k * n + k];
    }
  }
  return matrix;
}

// x with L L^T x = b.
std::vector<double> Solve(const std::vector<double>& root, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= root[i * n + k] * b[k];
    b[i] /= root[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= root[k * n + i] * b[k];
    b[i] /= root[i * n + i];
  }
  return b;
}

using Point = std::pair<double, double>;  // size, seconds

// By rising size, no size dearer than a larger one, and a point far out.
void MakeRising(std::vector<Point>* points) {
  std::sort(points->begin(), points->end());
  for (std::size_t i = points->size() - 1; i-- > 0;) {
    (*points)[i].second = std::min((*points)[i].second, (*points)[i + 1].second);
  }
  if (points->size() < 2) return;
  const auto [least, cheapest] = points->front();
  const auto [most, dearest] = points->back();
  points->emplace_back(kFar, dearest + (dearest - cheapest) / (most - least) * (kFar - most));
}

double Interpolate(const std::vector<Point>& points, double size) {
  const auto above = std::upper_bound(points.begin(), points.end(), size,
                                      [](double s, const Point& p) { return s < p.first; });
  if (above == points.begin()) return points.front().second;
  if (above == points.end()) return points.back().second;
  const Point& below = above[-1];
  const double share = (size - below.first) / (above->first - below.first);
  return below.second + share * (above->second - below.second);
}

}  // namespace

StepCosts::StepCosts() = default;

void StepCosts::Add(const std::vector<Timing>& timings, bool looked_at) {
  for (const auto& [size, seconds, steps] : timings) {
    if (size < 0 || steps < 1 || !std::isfinite(seconds)) {
      throw ValueError(StrCat("StepCosts: ", steps, " steps of ", size, " draft tokens took ",
                              seconds, " seconds; expected 1 or more, 0 or more, and a number"));
    }
  }
  if (!timings.empty()) Forget();
  for (const Timing& timing : timings) AddOne(timing, looked_at);
}

void StepCosts::AddOne(const Timing& timing, bool looked_at) {
  const auto& [size, seconds, steps] = timing;
  const std::int64_t before = uses_[size];
  uses_[size] += steps;
  if (uses_.size() == 1 && before < 2) {
    BeginWith(size);  // the first of all, or the second, which overrules it
  } else if (before == 0) {
    return;
  }
  std::size_t place = PlaceOf(size);
  if (place == 0) {
    if (sizes_.size() >= kMostSizes) return;
    place = Append(size);
  }
  std::vector<std::size_t> parts = {kPace, place};
  if (looked_at) parts.push_back(kLook);
  Update(parts, std::log(std::max(seconds, 1e-9)), kNoise / static_cast<double>(steps));
}

std::int64_t StepCosts::Count(std::int64_t size) const {
  const auto found = uses_.find(size);
  return found == uses_.end() ? 0 : found->second;
}

std::vector<double> StepCosts::Seconds(const std::vector<std::int64_t>& sizes, bool drawn) {
  if (sizes_.empty()) throw ValueError("StepCosts: no times yet; add(size, seconds) first");
  const std::vector<double> logs = drawn ? DrawnLogs() : mean_;
  std::vector<Point> points;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    points.emplace_back(sizes_[i], std::exp(logs[kPace] + logs[kFirst + i]));
  }
  MakeRising(&points);
  std::vector<double> seconds;
  for (const std::int64_t size : sizes) {
    seconds.push_back(Interpolate(points, static_cast<double>(size)));
  }
  return seconds;
}

std::size_t StepCosts::PlaceOf(std::int64_t size) const {
  const auto found = std::find(sizes_.begin(), sizes_.end(), size);
  return found == sizes_.end() ? 0 : kFirst + static_cast<std::size_t>(found - sizes_.begin());
}

void StepCosts::BeginWith(std::int64_t size) {
  sizes_.clear();
  prior_.clear();
  mean_ = {0.0, 0.0};
  doubt_ = {kUnknown, 0.0, 0.0, kLooking};
  Append(size);
}

// About a new size is known what the others tell.
std::size_t StepCosts::Append(std::int64_t size) {
  const std::size_t known = sizes_.size(), old = mean_.size();
  std::vector<double> to_size(known);
  for (std::size_t i = 0; i < known; ++i) to_size[i] = Prior(sizes_[i], size);
  const std::vector<double> weights = Solve(Root(prior_, known), to_size);
  double mean = 0.0, doubt = Prior(size, size);
  std::vector<double> shared(old, 0.0);  // covariance with the others
  for (std::size_t i = 0; i < known; ++i) {
    mean += weights[i] * mean_[kFirst + i];
    doubt -= weights[i] * to_size[i];
    for (std::size_t k = 0; k < old; ++k) shared[k] += weights[i] * Doubt(kFirst + i, k);
  }
  for (std::size_t i = 0; i < known; ++i) doubt += weights[i] * shared[kFirst + i];
  std::vector<double> larger((old + 1) * (old + 1));
  for (std::size_t i = 0; i < old; ++i) {
    std::copy_n(&doubt_[i * old], old, &larger[i * (old + 1)]);
    larger[i * (old + 1) + old] = larger[old * (old + 1) + i] = shared[i];
  }
  larger.back() = doubt;
  doubt_ = std::move(larger);
  mean_.push_back(mean);
  sizes_.push_back(size);
  prior_.clear();
  for (const std::int64_t a : sizes_) {
    for (const std::int64_t b : sizes_) prior_.push_back(Prior(a, b));
  }
  return old;
}

// Things change from one time to the next.
void StepCosts::Forget() {
  if (sizes_.empty()) return;
  Doubt(kPace, kPace) += kDrift;
  Doubt(kLook, kLook) += kChange * kLooking;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    for (std::size_t k = 0; k < sizes_.size(); ++k) {
      Doubt(kFirst + i, kFirst + k) += kChange * prior_[i * sizes_.size() + k];
    }
  }
}

// The sum of some unknowns was measured.
void StepCosts::Update(const std::vector<std::size_t>& parts, double measured, double noise) {
  const std::size_t n = mean_.size();
  std::vector<double> shared(n, 0.0);  // covariance of each with that sum
  double surprise = measured, whole = 0.0;
  for (const std::size_t part : parts) {
    surprise -= mean_[part];
    for (std::size_t i = 0; i < n; ++i) shared[i] += Doubt(i, part);
  }
  for (const std::size_t part : parts) whole += shared[part];
  if (whole < kSettled) surprise = std::clamp(surprise, -kHiccup, kHiccup);
  whole += noise;
  if (surprise * surprise > kJump * kJump * whole) {  // no news of the size
    const double jump = surprise * surprise;
    Doubt(kPace, kPace) += jump;
    shared[kPace] += jump;
    whole += jump;
  }
  for (std::size_t i = 0; i < n; ++i) {
    mean_[i] += shared[i] * surprise / whole;
    for (std::size_t k = 0; k < n; ++k) Doubt(i, k) -= shared[i] * shared[k] / whole;
  }
}

// mean_ with other costs of the sizes, as they may be.
std::vector<double> StepCosts::DrawnLogs() {
  const std::size_t n = sizes_.size();
  std::vector<double> doubt(n * n), draws(n), logs = mean_;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) doubt[i * n + k] = Doubt(kFirst + i, kFirst + k);
    doubt[i * n + i] += 1e-9;
    draws[i] = std::normal_distribution<double>()(random_);
  }
  const std::vector<double> root = Root(std::move(doubt), n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k <= i; ++k) logs[kFirst + i] += kDare * root[i * n + k] * draws[k];
  }
  return logs;
}

}  // namespace lattice_bpd
