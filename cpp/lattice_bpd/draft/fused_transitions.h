// Between steps 1 and 2 of the fused search: transition scores (lattice/sausage.h).
//
// The state of a path with transitions is a history and the last candidate. A row of one token or
// more has a last token, so it is a state already, and each of its hits has one transition. A root
// at boundary 1 or later would stand for all last candidates: each lane with hits that lead to it
// gets a *lane row*, without hits, whose suffix is the root. With
//
//   value(row, w) = value(root, w) + transition(last lane, w) + backoff   where the suffix is a
//   root
//
// (RowValues::Fill) all that follows step 1 remains as it is, and no path is at such a root. Lane
// rows come after all others, by boundary, as if they were one length more.
#ifndef LATTICE_BPD_DRAFT_FUSED_TRANSITIONS_H_
#define LATTICE_BPD_DRAFT_FUSED_TRANSITIONS_H_

#include <algorithm>
#include <cstdint>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/fused_task.h"
#include "lattice_bpd/draft/fused_workspace.h"

namespace lattice_bpd {
namespace {

// Transitions lane by lane, after LoadCandidates. Of each slot the greatest is moved to its head
// scores: what remains is 0 or less, so its exponential is a number whatever the scores' range.
inline void LoadTransitions(const FusedTask& task, FusedWorkspace* w) {
  if (!task.has_transitions) return;
  w->transitions.Resize(task.Transitions(task.num_slots, 0));
  std::fill_n(w->transitions.data(), w->transitions.size(), 0.0);
  for (std::uint32_t j = 1; j < task.num_slots; ++j) {
    const float* scores = task.sausage.transitions(j).data();
    const std::uint32_t* order = w->order.data() + task.Lane(j, 0);
    const std::uint32_t* order_before = w->order.data() + task.Lane(j - 1, 0);
    const std::uint32_t before = task.Width(j - 1), width = task.Width(j);
    const double greatest =
        ToScoreGrid(*std::max_element(scores, scores + std::size_t{before} * width));
    for (std::uint32_t a = 0; a < before; ++a, scores += width) {
      double* row = w->transitions.data() + task.Transitions(j, order_before[a]);
      for (std::uint32_t c = 0; c < width; ++c) row[order[c]] = ToScoreGrid(scores[c]) - greatest;
    }
    double* heads = w->head_scores.data() + task.Lane(j, 0);
    for (std::uint32_t lane = 0; lane < width; ++lane) heads[lane] += greatest;
  }
}

class TransitionRows {
 public:
  TransitionRows(FusedTask* task, FusedWorkspace* workspace) : task_(*task), w_(*workspace) {}

  // After all other rows and hits.
  void Run() {
    const std::uint32_t most = task_.num_slots * task_.stride;  // lane rows
    w_.rows.Reserve(most, task_.lane_words);
    w_.last_lane.Resize(std::size_t{w_.rows.size} + most);
    for (std::uint32_t j = 1; j < task_.num_slots; ++j) {
      AddToHits(j);
      w_.row_begin.Append(w_.rows.size);
      AddLaneRows(j);
    }
    w_.row_begin.Append(w_.rows.size);
    ++task_.max_length;
  }

 private:
  // As HitFinder's.
  std::uint32_t RowBegin(std::uint32_t length, std::uint32_t j) const {
    return w_.row_begin[std::size_t{length} * task_.num_slots + j];
  }

  // To each hit at boundary j but the root's, its transition.
  void AddToHits(std::uint32_t j) {
    for (std::uint32_t length = 1; length <= task_.max_length; ++length) {
      const std::uint32_t end = RowBegin(length, j + 1);
      for (std::uint32_t r = RowBegin(length, j); r < end; ++r) {
        const std::uint32_t last = w_.hits.lane[w_.rows.hit[r]];
        const double* transitions = w_.transitions.data() + task_.Transitions(j, last);
        w_.last_lane[r] = last;
        for (std::uint32_t h = w_.rows.hits_begin[r]; h < w_.rows.hits_begin[r + 1]; ++h) {
          w_.hits.score[h] += transitions[w_.hits.lane[h]];
        }
      }
    }
  }

  // At boundary j, for candidates of slot j - 1: every hit that leads to the root is led to the row
  // of its lane.
  void AddLaneRows(std::uint32_t j) {
    const std::uint32_t root = j;
    w_.lane_rows.Resize(task_.stride);
    std::fill_n(w_.lane_rows.data(), task_.stride, kNoNode);
    for (std::uint32_t length = 0; length <= task_.max_length; ++length) {
      const std::uint32_t end = w_.rows.hits_begin[RowBegin(length, j)];
      for (std::uint32_t h = w_.rows.hits_begin[RowBegin(length, j - 1)]; h < end; ++h) {
        if (w_.hits.target[h] != root) continue;
        std::uint32_t& row = w_.lane_rows[w_.hits.lane[h]];
        if (row == kNoNode) row = AddLaneRow(root, w_.hits.lane[h]);
        w_.hits.target[h] = row;
      }
    }
  }

  std::uint32_t AddLaneRow(std::uint32_t root, std::uint32_t lane) {
    const std::uint32_t r = w_.rows.size++;
    w_.rows.hits_begin[r + 1] = w_.hits.size;
    w_.rows.suffix[r] = root;
    w_.rows.backoff[r] = 0.0;
    w_.last_lane[r] = lane;
    std::fill_n(w_.rows.lane_bits.data() + std::size_t{r} * task_.lane_words, task_.lane_words, 0);
    return r;
  }

  FusedTask& task_;
  FusedWorkspace& w_;
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_TRANSITIONS_H_
