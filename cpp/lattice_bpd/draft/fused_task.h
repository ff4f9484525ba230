// The arguments of a fused search, derived sizes, and its candidates lane by lane.
//
// As all fused_*.h that compute, in an anonymous namespace (see fused_search.h).
#ifndef LATTICE_BPD_DRAFT_FUSED_TASK_H_
#define LATTICE_BPD_DRAFT_FUSED_TASK_H_

#include <algorithm>
#include <limits>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/fused_workspace.h"

namespace lattice_bpd {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct FusedTask {
  FusedTask(const Sausage& lattice, const BackoffLm* model, const LmState& state,
            const DraftOptions& options)
      : sausage(lattice),
        lm(model),
        start(state),
        alpha(options.alpha),
        num_drafts(static_cast<std::uint32_t>(options.num_drafts)),
        num_slots(static_cast<std::uint32_t>(lattice.num_slots())),
        has_transitions(lattice.has_transitions()),
        is_local(options.normalization == Normalization::kLocal),
        has_unk(model != nullptr && (model->vocabulary().unlisted != nullptr ||
                                     !model->vocabulary().is_token(lattice.max_token_id()))),
        max_length(model == nullptr ? 0 : static_cast<std::uint32_t>(model->order()) - 1) {
    for (std::uint32_t j = 0; j < num_slots; ++j) stride = std::max(stride, Width(j));
    stride = (stride + kFusedLanes - 1) / kFusedLanes * kFusedLanes;
    lane_words = (stride + 63) / 64;
  }

  std::uint32_t Width(std::uint32_t slot) const {
    return static_cast<std::uint32_t>(sausage.width(slot));
  }
  std::size_t Lane(std::uint32_t slot, std::uint32_t lane) const {
    return std::size_t{slot} * stride + lane;
  }
  // Where the transitions from a lane of slot j - 1 to those of slot j begin, j > 0.
  std::size_t Transitions(std::uint32_t slot, std::uint32_t lane) const {
    return (std::size_t{slot - 1} * stride + lane) * stride;
  }
  // Whether a row is a root that stands for several last candidates (fused_transitions.h).
  bool IsSharedRoot(std::uint32_t r) const { return has_transitions && r != 0 && r < num_slots; }
  double Scaled(double natural_log) const { return ToScoreGrid(alpha * natural_log); }

  const Sausage& sausage;
  const BackoffLm* lm;
  const LmState& start;
  const double alpha;
  const std::uint32_t num_drafts;
  const std::uint32_t num_slots;
  const bool has_transitions;
  const bool is_local;           // normalization
  const bool has_unk;            // whether candidates may be <unk> to the LM
  std::uint32_t max_length;      // of histories: order - 1
  std::uint32_t stride = 0;      // lanes of a slot, padded
  std::uint32_t lane_words = 0;  // 64-bit words that have a bit for each lane
};

// For few numbers: the rank of each by counting, which does without guesses at their order.
constexpr std::uint32_t kCountedRanks = 64;

// order[i] = the lane of candidate i.
void OrderByTokenId(const TokenId* ids, std::uint32_t width, FusedWorkspace* w,
                    std::uint32_t* order) {
  if (width <= kCountedRanks) {
    for (std::uint32_t i = 0; i < width; ++i) {
      std::uint32_t rank = 0;
      for (std::uint32_t k = 0; k < width; ++k) rank += ids[k] < ids[i];
      order[i] = rank;
    }
    return;
  }
  w->sorted.Resize(width);
  for (std::uint32_t i = 0; i < width; ++i) {
    w->sorted[i] = (static_cast<std::uint64_t>(ids[i]) << 32) | i;
  }
  std::sort(w->sorted.begin(), w->sorted.end());
  for (std::uint32_t lane = 0; lane < width; ++lane) {
    order[static_cast<std::uint32_t>(w->sorted[lane])] = lane;
  }
}

// Lanes by increasing token id, so that whatever walks them in order walks drafts in tie order.
void LoadCandidates(const FusedTask& task, FusedWorkspace* w) {
  const std::uint32_t stride = task.stride;
  w->symbols.Resize(std::size_t{task.num_slots} * stride);
  w->symbols16.Resize(std::size_t{task.num_slots} * stride + 2 * kFusedSpare);
  w->head_scores.Resize(std::size_t{task.num_slots} * stride);
  w->order.Resize(std::size_t{task.num_slots} * stride);
  for (std::uint32_t j = 0; j < task.num_slots; ++j) {
    const TokenId* ids = task.sausage.token_ids(j).data();
    const float* scores = task.sausage.scores(j).data();
    const std::uint32_t width = task.Width(j);
    std::uint32_t* order = w->order.data() + task.Lane(j, 0);
    OrderByTokenId(ids, width, w, order);
    std::uint32_t* symbols = w->symbols.data() + task.Lane(j, 0);
    double* heads = w->head_scores.data() + task.Lane(j, 0);
    for (std::uint32_t i = 0; i < width; ++i) {
      symbols[order[i]] = static_cast<Symbol>(ids[i]);
      heads[order[i]] = ToScoreGrid(scores[i]);
    }
    std::fill(heads + width, heads + stride, kMinusInfinity);
    std::fill(symbols + width, symbols + stride, kNoSymbol);
    std::uint16_t* symbols16 = w->symbols16.data() + task.Lane(j, 0);
    for (std::uint32_t lane = 0; lane < stride; ++lane) {
      symbols16[lane] = static_cast<std::uint16_t>(std::min<Symbol>(symbols[lane], 0xffff));
    }
  }
}

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_TASK_H_
