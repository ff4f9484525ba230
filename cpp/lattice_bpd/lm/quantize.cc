#include "lattice_bpd/lm/quantize.h"

#include <algorithm>
#include <cmath>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/lm/unpack.h"

namespace lattice_bpd {
namespace {

constexpr float kSpecialBelow = -50.0f;
constexpr int kRounds = 12;  // of Lloyd's algorithm; the start is good already

bool IsSpecial(float value) { return value < kSpecialBelow || value == 0.0f; }

// Distinct values by increasing value, with sums from the left: sums over any run are differences.
class Histogram {
 public:
  explicit Histogram(std::vector<float> sorted) {
    for (std::size_t i = 0; i < sorted.size();) {
      std::size_t end = i;
      while (end < sorted.size() && sorted[end] == sorted[i]) ++end;
      Add(sorted[i], static_cast<double>(end - i));
      i = end;
    }
  }

  const std::vector<float>& values() const { return values_; }

  // The mean of values begin .. end - 1, each as often as it occurs.
  float Mean(std::size_t begin, std::size_t end) const {
    return static_cast<float>((sum_[end] - sum_[begin]) / (count_[end] - count_[begin]));
  }

  // k values as dense as the cube root of the density: the best for the mean squared error where
  // there are many (Panter and Dite 1951), and it leaves some to the sparse ends.
  std::vector<float> Spread(std::size_t k) const {
    std::vector<double> weight(values_.size() + 1, 0.0);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const double left = values_[i == 0 ? 0 : i - 1];
      const double width = values_[std::min(i + 1, values_.size() - 1)] - left;
      weight[i + 1] = weight[i] + std::cbrt((count_[i + 1] - count_[i]) * width * width);
    }
    std::vector<float> centers;
    for (std::size_t j = 0; j < k; ++j) {
      const double at = weight.back() * (static_cast<double>(j) + 0.5) / static_cast<double>(k);
      const auto above = std::lower_bound(weight.begin() + 1, weight.end(), at);
      const auto i = static_cast<std::size_t>(above - weight.begin()) - 1;
      centers.push_back(values_[std::min(i, values_.size() - 1)]);
    }
    return centers;
  }

 private:
  void Add(float value, double count) {
    values_.push_back(value);
    count_.push_back(count_.back() + count);
    sum_.push_back(sum_.back() + count * value);
  }

  std::vector<float> values_;
  std::vector<double> count_ = {0.0};
  std::vector<double> sum_ = {0.0};
};

// The values nearest to each center start where the last center's end; `bounds` has their ends.
std::vector<std::size_t> Bounds(const Histogram& histogram, const std::vector<float>& centers) {
  const std::vector<float>& values = histogram.values();
  std::vector<std::size_t> bounds = {0};
  for (std::size_t j = 0; j + 1 < centers.size(); ++j) {
    const float middle = centers[j] + (centers[j + 1] - centers[j]) / 2.0f;
    const auto end = std::upper_bound(values.begin() + static_cast<std::ptrdiff_t>(bounds.back()),
                                      values.end(), middle);
    bounds.push_back(static_cast<std::size_t>(end - values.begin()));
  }
  bounds.push_back(values.size());
  return bounds;
}

std::vector<float> FindCenters(const Histogram& histogram, std::size_t k) {
  if (histogram.values().size() <= k) return histogram.values();
  std::vector<float> centers = histogram.Spread(k);
  for (int round = 0; round < kRounds; ++round) {
    CheckInterrupted();
    const std::vector<std::size_t> bounds = Bounds(histogram, centers);
    for (std::size_t j = 0; j < centers.size(); ++j) {
      if (bounds[j] < bounds[j + 1]) centers[j] = histogram.Mean(bounds[j], bounds[j + 1]);
    }
  }
  return centers;
}

float Nearest(const std::vector<float>& centers, float value) {
  const auto above = std::lower_bound(centers.begin(), centers.end(), value);
  if (above == centers.begin()) return *above;
  if (above == centers.end() || value - above[-1] <= *above - value) return above[-1];
  return *above;
}

}  // namespace

float QuantizeValues(std::size_t num_values, std::vector<float>* values) {
  std::vector<float> sorted = *values;
  std::sort(sorted.begin(), sorted.end());
  std::vector<float> special = sorted;
  special.erase(std::unique(special.begin(), special.end()), special.end());
  if (special.size() <= num_values) return 0.0f;
  special.erase(
      std::remove_if(special.begin(), special.end(), [](float v) { return !IsSpecial(v); }),
      special.end());
  const bool keep_special = special.size() <= num_values / 8;  // else they are nothing special
  if (keep_special) {
    sorted.erase(std::remove_if(sorted.begin(), sorted.end(), IsSpecial), sorted.end());
    num_values -= special.size();
  }
  const std::vector<float> centers = FindCenters(Histogram(std::move(sorted)), num_values);
  float largest = 0.0f;
  InterruptCounter interrupts;
  for (float& value : *values) {
    interrupts.Count();
    if (keep_special && IsSpecial(value)) continue;
    const float rounded = Nearest(centers, value);
    largest = std::max(largest, std::abs(rounded - value));
    value = rounded;
  }
  return largest;
}

std::shared_ptr<const BackoffLm> QuantizeLm(const BackoffLm& lm, int bits) {
  if (bits != 8 && bits != 12 && bits != 16) {
    throw ValueError(StrCat("quantize: bits is ", bits, "; expected 8, 12 or 16"));
  }
  const std::size_t num_values = std::size_t{1} << bits;
  Trie trie = UnpackLm(lm);
  for (TrieLevel& level : trie.levels) {
    level.log_prob_error += QuantizeValues(num_values, &level.log_prob);
    level.backoff_error += QuantizeValues(num_values, &level.backoff);
  }
  return BackoffLm::FromTrie(trie, Packing::kSmall);
}

}  // namespace lattice_bpd
