// Drafts from a gated mixture of sources: heads, n-gram LMs, the text so far, other texts.
//
// Each source e gives a few tokens after a history h their probabilities p_e(b | h), and
//
//   q(b | h) = sum over e of g_e(h) p_e(b | h)
//
// with gates g_e (gates.h). Sources leave out unlikely tokens, so q sums to at most 1, and
// the probability of a prefix, the product along its path, never exceeds that of its parent. A
// best-first search therefore finds the most probable prefixes: the tree of greatest expected
// accept length. What several sources propose is one node, and the search continues after the last
// slot of the heads.
//
// Slots of heads know nothing of each other: without transition scores, p of the heads is rescored
// by the others, p_e(b | h) ~ p_heads(b) sqrt(mean over the others of p(b | h) + 0.003).
#ifndef LATTICE_BPD_MIXTURE_MIXTURE_H_
#define LATTICE_BPD_MIXTURE_MIXTURE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/mixture/gates.h"
#include "lattice_bpd/mixture/lm_successors.h"
#include "lattice_bpd/mixture/text_store.h"

namespace lattice_bpd {

constexpr int kMaxMixtureLms = 4;

// The sources of a mixture and the gates that each text begins with. Immutable.
class Mixture {
 public:
  struct Options {
    std::uint32_t vocab_size = 0;
    bool has_heads = false;
    std::vector<std::shared_ptr<const BackoffLm>> lms;
    bool has_text = true;              // the text so far
    std::shared_ptr<TextStore> store;  // or null
    bool has_target = false;           // predictions of the target (prediction_table.h)
    double learning_rate = 0.0;        // of the gates, for each decoded token
  };

  // theta: gate weights by source and bin; empty: all 0. Throws ValueError for no source, too many
  // LMs or another number of weights.
  Mixture(Options options, GateWeights theta);

  const Options& options() const { return options_; }
  const GateLayout& layout() const { return layout_; }
  const GateWeights& theta() const { return theta_; }
  const std::vector<LmSuccessors>& lms() const { return lms_; }

 private:
  Options options_;
  GateLayout layout_;
  GateWeights theta_;
  std::vector<LmSuccessors> lms_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_MIXTURE_MIXTURE_H_
