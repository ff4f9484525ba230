#include "lattice_bpd/mixture/gates.h"

#include <algorithm>

#include "lattice_bpd/draft/fused_exponentials.h"

namespace lattice_bpd {
namespace {

constexpr int kLengthBins = 7, kCountBins = 4, kTopBins = 5;

// The number of bounds that are not above a value.
template <typename T, std::size_t kSize>
int BinOf(T value, const T (&bounds)[kSize]) {
  int bin = 0;
  for (const T bound : bounds) bin += value >= bound;
  return bin;
}

int TopBin(double top) {
  // No quotients of small counts, so that rounding decides no bin.
  static constexpr double kBounds[kTopBins - 1] = {0.101, 0.307, 0.613, 0.907};
  return BinOf(top, kBounds);
}

int CountBin(std::uint32_t count) {
  static constexpr std::uint32_t kBounds[kCountBins - 1] = {2, 3, 5};
  return BinOf(count, kBounds);
}

int LengthBin(std::uint32_t length) {
  return static_cast<int>(std::min<std::uint32_t>(length, kLengthBins - 1));
}

}  // namespace

int NumBins(SourceKind kind) {
  switch (kind) {
    case SourceKind::kHeads:
      return 1 + kTopBins;
    case SourceKind::kLm:
    case SourceKind::kTarget:
      return kLengthBins + kTopBins;
    case SourceKind::kText:
    case SourceKind::kStore:
      return kLengthBins + kCountBins + kTopBins;
  }
  return 0;
}

GateLayout::GateLayout(const std::vector<SourceKind>& sources)
    : sources_(sources), num_bins_(kDepthBins) {
  for (const SourceKind kind : sources) {
    first_bins_.push_back(num_bins_);
    num_bins_ += NumBins(kind);
  }
}

GateInputs GateLayout::Describe(int depth,
                                const std::array<SourceMatch, kMaxSources>& matches) const {
  GateInputs inputs;
  const auto add = [&inputs](int bin) {
    inputs.bins[inputs.num_bins++] = static_cast<std::uint16_t>(bin);
  };
  add(std::min(depth, kDepthBins - 1));
  for (int s = 0; s < num_sources(); ++s) {
    const SourceMatch& match = matches[s];
    const int first = first_bins_[s];
    inputs.is_active[s] = match.is_active;
    inputs.is_active[num_sources()] |= match.is_active;
    switch (sources_[s]) {
      case SourceKind::kHeads:
        add(first + (match.is_active ? 1 + TopBin(match.top) : 0));
        break;
      case SourceKind::kLm:
      case SourceKind::kTarget:
        add(first + LengthBin(match.length));
        add(first + kLengthBins + TopBin(match.top));
        break;
      case SourceKind::kText:
      case SourceKind::kStore:
        add(first + LengthBin(match.length));
        add(first + kLengthBins + CountBin(match.count));
        add(first + kLengthBins + kCountBins + TopBin(match.top));
        break;
    }
  }
  return inputs;
}

SourceValues ComputeGates(const GateLayout& layout, const GateWeights& theta,
                          const GateInputs& inputs) {
  SourceValues gates = {};
  double scores[kMaxSources];
  double greatest = -std::numeric_limits<double>::infinity();
  const int num_rows = layout.num_rows(), num_bins = layout.num_bins();
  for (int s = 0; s < kMaxSources; ++s) {
    scores[s] = -std::numeric_limits<double>::infinity();
    if (s >= num_rows || !inputs.is_active[s]) continue;
    const double* row = theta.data() + static_cast<std::size_t>(s) * num_bins;
    double score = 0.0;
    for (int b = 0; b < inputs.num_bins; ++b) score += row[inputs.bins[b]];
    scores[s] = score;
    greatest = std::max(greatest, score);
  }
  if (greatest == -std::numeric_limits<double>::infinity()) return gates;
  TakeExponentials(scores, kMaxSources, greatest, gates.data());
  double sum = 0.0;
  for (int s = 0; s < num_rows; ++s) sum += gates[s];
  for (int s = 0; s < num_rows; ++s) gates[s] /= sum;
  return gates;
}

void UpdateGates(const GateLayout& layout, const GateInputs& inputs, const SourceValues& gates,
                 const SourceValues& probs, double rate, GateWeights* theta) {
  double total = 0.0;
  for (int s = 0; s < layout.num_rows(); ++s) total += gates[s] * probs[s];
  if (!(total > 0.0)) return;
  for (int s = 0; s < layout.num_rows(); ++s) {
    if (!inputs.is_active[s]) continue;
    const double step = rate * (gates[s] * probs[s] / total - gates[s]);
    double* row = theta->data() + static_cast<std::size_t>(s) * layout.num_bins();
    for (int b = 0; b < inputs.num_bins; ++b) row[inputs.bins[b]] += step;
  }
}

}  // namespace lattice_bpd
