// What the tree search (fused_tree.h) ranks prefixes by: their mass, their rank among samples, or
// their probability once the target's noise is known (find_tree.h, sample_tree.h).
//
// In an anonymous namespace as all fused_*.h that compute (see fused_search.h).
#ifndef LATTICE_BPD_DRAFT_FUSED_RANKINGS_H_
#define LATTICE_BPD_DRAFT_FUSED_RANKINGS_H_

#include <algorithm>
#include <cmath>

#include "lattice_bpd/base/keyed_noise.h"
#include "lattice_bpd/draft/fused_task.h"
#include "lattice_bpd/draft/sample_tree.h"

namespace lattice_bpd {
namespace {

// A node, and the scores of what may follow it.
struct FusedFork {
  const FusedNode& parent;
  std::int32_t index;  // of the parent among the nodes; -1 for the root
  std::uint32_t slot;  // of the children
  const double* values;
  std::uint32_t width;
  double worth;  // ln of the sum of exp(values), on the grid
};

// children[lane].value and .log_prob of FindTree: ln of the mass.
class ByMass {
 public:
  static constexpr bool kSkipsImpossible = false;

  void Rank(const FusedFork& fork, FusedNode* children) const {
    const double added = fork.parent.log_prob - fork.worth;
    for (std::uint32_t lane = 0; lane < fork.width; ++lane) {
      children[lane].value = children[lane].log_prob = fork.values[lane] + added;
    }
  }
};

// Both uses of noise begin with q, the exact distribution of the next token, which they write down.
class ByNoise {
 public:
  static constexpr bool kSkipsImpossible = true;

  ByNoise(const FusedTask& task, const FusedWorkspace& workspace, const SampleOptions& options,
          SampledTree* out)
      : task_(task), w_(workspace), options_(options), out_(*out) {
    out_.width = task.stride;
    out_.token_ids.assign(std::size_t{task.num_slots} * out_.width, kPadToken);
    for (std::uint32_t slot = 0; slot < task.num_slots; ++slot) {
      for (std::uint32_t lane = 0; lane < task.Width(slot); ++lane) {
        out_.token_ids[slot * out_.width + lane] = TokenOf(slot, lane);
      }
    }
  }

  void Rank(const FusedFork& fork, FusedNode* children) {
    if (!WriteProbs(fork)) {
      for (std::uint32_t lane = 0; lane < fork.width; ++lane) {
        children[lane].value = children[lane].log_prob = kMinusInfinity;
      }
    } else if (options_.use == NoiseUse::kIndependent) {
      Sample(fork, children);
    } else {
      Weigh(fork, children);
    }
  }

 private:
  TokenId TokenOf(std::uint32_t slot, std::uint32_t lane) const {
    return static_cast<TokenId>(w_.symbols[task_.Lane(slot, lane)]);
  }

  // False where nothing can follow.
  bool WriteProbs(const FusedFork& fork) {
    const std::size_t begin = static_cast<std::size_t>(fork.index + 1) * out_.width;
    out_.child_probs.resize(begin + out_.width, 0.0);
    probs_ = out_.child_probs.data() + begin;
    const double best = *std::max_element(fork.values, fork.values + fork.width);
    if (best == kMinusInfinity) return false;
    double total = 0.0;
    for (std::uint32_t lane = 0; lane < fork.width; ++lane) {
      probs_[lane] = std::exp(fork.values[lane] - best);
      total += probs_[lane];
    }
    for (std::uint32_t lane = 0; lane < fork.width; ++lane) probs_[lane] /= total;
    return true;
  }

  // Values that are Gumbel around log_prob, given that their maximum is the parent's.
  void Sample(const FusedFork& fork, FusedNode* children) const {
    const NoiseRow noise(options_.key, static_cast<std::uint64_t>(fork.index + 1));
    double largest = kMinusInfinity;
    for (std::uint32_t lane = 0; lane < fork.width; ++lane) {
      FusedNode& child = children[lane];
      child.log_prob = fork.parent.log_prob + std::log(probs_[lane]);
      child.value = child.log_prob + noise.Gumbel(lane);
      largest = std::max(largest, child.value);
    }
    for (std::uint32_t lane = 0; lane < fork.width; ++lane) {
      double& value = children[lane].value;
      // -log(exp(-parent) - exp(-largest) + exp(-value)), without overflow
      const double v = fork.parent.value - value + std::log1p(-std::exp(value - largest));
      value = value == largest
                  ? fork.parent.value
                  : fork.parent.value - std::max(v, 0.0) - std::log1p(std::exp(-std::fabs(v)));
    }
  }

  void Weigh(const FusedFork& fork, FusedNode* children) const {
    const NoiseRow noise(options_.key, options_.position + fork.slot);
    double best = kMinusInfinity;
    for (std::uint32_t lane = 0; lane < fork.width; ++lane) {
      const double gumbel = noise.Gumbel(static_cast<std::uint64_t>(TokenOf(fork.slot, lane)));
      children[lane].value = options_.sharpness * (std::log(probs_[lane]) + gumbel);
      best = std::max(best, children[lane].value);
    }
    double total = 0.0;
    for (std::uint32_t lane = 0; lane < fork.width; ++lane) {
      total += std::exp(children[lane].value - best);
    }
    const double added = fork.parent.value - best - std::log(total);
    for (std::uint32_t lane = 0; lane < fork.width; ++lane) {
      children[lane].value += added;
      children[lane].log_prob = children[lane].value;
    }
  }

  const FusedTask& task_;
  const FusedWorkspace& w_;
  const SampleOptions& options_;
  SampledTree& out_;
  double* probs_ = nullptr;
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_RANKINGS_H_
