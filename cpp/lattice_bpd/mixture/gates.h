// The weights of a mixture's sources, as functions of what each source knows about a history.
//
// Linear interpolation with bucketed weights (Jelinek and Mercer 1980), the buckets being sums of
// one-hot bins: the weight of source s after history h is
//
//   g_s(h) = exp z_s(h) / sum over the sources that know h and "none",    z_s(h) = sum over bins b
//   of theta[s][b]
//
// "none" stands for the tokens that no source proposes: without it a single source, or several that
// know little, would have all the weight however often they are wrong. Its row is the last of
// theta. The bins of a history are its depth below the text and, of each source, the length of its
// match, its count and the share of its most probable token. theta is fitted offline to many texts
// and follows each text online by gradient ascent on ln sum_s g_s p_s(token).
#ifndef LATTICE_BPD_MIXTURE_GATES_H_
#define LATTICE_BPD_MIXTURE_GATES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

// With "none".
constexpr int kMaxSources = 16;
constexpr int kMaxBins = 1 + 3 * kMaxSources;  // bins of one history

// kHeads: candidates of a lattice's slots. kLm: a backoff LM. kText: counts of the text so far.
// kStore: counts of other texts. kTarget: what the target has predicted.
enum class SourceKind : std::uint8_t { kHeads, kLm, kText, kStore, kTarget };

// What a source knows about a history.
struct SourceMatch {
  bool is_active = false;
  std::uint32_t length = 0;  // of the longest match, in tokens; of heads not used
  std::uint32_t count = 0;   // of that match; kText and kStore
  double top = 0.0;          // probability of its most probable token
};

// The bins of a history, as columns of theta, and the sources that know it; "none" if there is one.
struct GateInputs {
  std::array<std::uint16_t, kMaxBins> bins;
  int num_bins = 0;
  std::array<bool, kMaxSources> is_active = {};
};

using SourceValues = std::array<double, kMaxSources>;

// Where the bins of a list of sources are in theta.
class GateLayout {
 public:
  explicit GateLayout(const std::vector<SourceKind>& sources);

  int num_sources() const { return static_cast<int>(sources_.size()); }
  int num_rows() const { return num_sources() + 1; }  // of theta; the last one is "none"
  int num_bins() const { return num_bins_; }
  const std::vector<SourceKind>& sources() const { return sources_; }

  // The first column of a source's bins. Before those of the first source are those of the depth.
  int FirstBin(int source) const { return first_bins_[source]; }

  // depth: tokens between the text and the next token, from 0.
  GateInputs Describe(int depth, const std::array<SourceMatch, kMaxSources>& matches) const;

 private:
  std::vector<SourceKind> sources_;
  std::vector<int> first_bins_;
  int num_bins_ = 0;
};

// Number of bins of the depth, and of a source.
constexpr int kDepthBins = 8;
int NumBins(SourceKind kind);

// theta, by source, "none" being the last, and bin.
using GateWeights = std::vector<double>;

// The weights of the active sources and of "none", which sum to 1; 0 for others. All are 0 if no
// source is active.
SourceValues ComputeGates(const GateLayout& layout, const GateWeights& theta,
                          const GateInputs& inputs);

// One step of gradient ascent on ln sum_s gates[s] probs[s]. Nothing where that sum is 0.
void UpdateGates(const GateLayout& layout, const GateInputs& inputs, const SourceValues& gates,
                 const SourceValues& probs, double rate, GateWeights* theta);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_MIXTURE_GATES_H_
