// Step 3 of the fused search (fused_search.h): a beam of p prefixes, ranked by their exact best
// completion.
#ifndef LATTICE_BPD_DRAFT_FUSED_BEAM_H_
#define LATTICE_BPD_DRAFT_FUSED_BEAM_H_

#include "lattice_bpd/draft/fused_completions.h"
#include "lattice_bpd/draft/fused_hits.h"

namespace lattice_bpd {
namespace {

// Prefixes are in tie order (by token ids) throughout, so that of equals the first ones win.
template <typename Simd>
class BeamSearch {
 public:
  BeamSearch(const FusedTask& task, FusedWorkspace* workspace) : task_(task), w_(*workspace) {}

  void Run(CompletionFinder<Simd>* completions) {
    w_.beam.Clear();
    const std::uint32_t start = w_.hits.target[0];
    w_.beam.Append({start, 0, 0, w_.hits.constant[0] + w_.worth[start]});
    begin_ = 0;
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) {
      const auto end = static_cast<std::uint32_t>(w_.beam.size());
      const std::uint32_t num_candidates = ExtendPrefixes(j, end, completions);
      KeepBest(j, num_candidates);
      begin_ = end;
    }
  }

  void WriteDrafts(DraftList* out) {
    const std::uint32_t count = static_cast<std::uint32_t>(w_.beam.size()) - begin_;
    RankDrafts(count);
    out->num_slots = task_.num_slots;
    out->token_ids.resize(std::size_t{count} * task_.num_slots);
    out->scores.resize(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      std::uint32_t b = w_.order[i];
      out->scores[i] = w_.beam[b].score;
      TokenId* draft = out->token_ids.data() + std::size_t{i} * task_.num_slots;
      for (std::uint32_t j = task_.num_slots; j-- > 0; b = w_.beam[b].parent) {
        draft[j] = static_cast<TokenId>(w_.symbols[task_.Lane(j, w_.beam[b].lane)]);
      }
    }
  }

 private:
  // The next slot's prefixes go to w_.found_*; returns their number.
  std::uint32_t ExtendPrefixes(std::uint32_t j, std::uint32_t end,
                               CompletionFinder<Simd>* completions) {
    // Each prefix has a best completion, so p prefixes guarantee p paths at least as good as this.
    double least = kMinusInfinity;
    if (end - begin_ == task_.num_drafts) {
      least = w_.beam[begin_].score;
      for (std::uint32_t b = begin_; b < end; ++b) least = std::min(least, w_.beam[b].score);
    }
    std::uint32_t count = 0;
    const std::uint32_t width = task_.Width(j);
    for (std::uint32_t b = begin_; b < end; ++b) {
      Reserve(count + task_.stride + kFusedSpare);
      const std::uint32_t r = w_.beam[b].row;
      const double* values = completions->ValuesOf(r);
      const std::uint32_t more =
          Simd::AtLeast(values, w_.beam[b].score - w_.worth[r], width, least,
                        w_.found_scores.data() + count, w_.found_lanes.data() + count);
      std::fill_n(w_.found_parents.data() + count, more, b);
      count += more;
    }
    return count;
  }

  void Reserve(std::size_t size) {
    w_.found_scores.Resize(std::max(size, w_.found_scores.size()));
    w_.found_lanes.Resize(std::max(size, w_.found_lanes.size()));
    w_.found_parents.Resize(std::max(size, w_.found_parents.size()));
  }

  // Appends the p best candidates to the beam, in their order.
  void KeepBest(std::uint32_t j, std::uint32_t num_candidates) {
    const double* scores = w_.found_scores.data();
    double worst = kMinusInfinity;
    std::uint32_t ties = num_candidates;
    if (num_candidates > task_.num_drafts) {
      worst = WorstKept(num_candidates);
      ties = task_.num_drafts - Simd::CountAbove(scores, num_candidates, worst);
    }
    const std::size_t begin = w_.beam.size();
    w_.beam.Resize(begin + task_.num_drafts + 1);
    FusedPrefix* next = w_.beam.data() + begin;
    for (std::uint32_t i = 0; i < num_candidates;
         ++i) {  // the one after the last kept is overwritten
      const std::uint32_t tie = std::uint32_t{scores[i] == worst} & std::uint32_t{ties > 0};
      *next = {0, w_.found_parents[i], w_.found_lanes[i], scores[i]};
      next += tie | std::uint32_t{scores[i] > worst};
      ties -= tie;
    }
    w_.beam.Resize(next - w_.beam.data());
    if (j + 1 == task_.num_slots) return;
    for (std::size_t b = begin; b < w_.beam.size(); ++b) {
      w_.beam[b].row = TargetOf(task_, w_, w_.beam[w_.beam[b].parent].row, w_.beam[b].lane);
    }
  }

  // A score that fewer than p others are above, and at least p are not below: the p-th best, or
  // less if that parts the same. Binary search; the scores' order costs no branches.
  double WorstKept(std::uint32_t num_candidates) {
    const double* scores = w_.found_scores.data();
    double low = scores[0];   // at least p scores are this or more
    double high = scores[0];  // fewer than p are above
    for (std::uint32_t i = 1; i < num_candidates; ++i) {
      low = std::min(low, scores[i]);
      high = std::max(high, scores[i]);
    }
    for (;;) {
      const double middle = low + (high - low) / 2;
      if (!(low < middle && middle < high)) break;
      const std::uint32_t above = Simd::CountAbove(scores, num_candidates, middle);
      if (above == task_.num_drafts) return middle;
      low = above > task_.num_drafts ? middle : low;
      high = above > task_.num_drafts ? high : middle;
    }
    return Simd::CountAbove(scores, num_candidates, low) < task_.num_drafts ? low : high;
  }

  // order[i] = the beam's index of draft i: by decreasing score, equals in their order.
  void RankDrafts(std::uint32_t count) {
    w_.order.Resize(count);
    const FusedPrefix* drafts = w_.beam.data() + begin_;
    if (count > kCountedRanks) {
      for (std::uint32_t i = 0; i < count; ++i) w_.order[i] = begin_ + i;
      std::sort(w_.order.begin(), w_.order.end(), [&](std::uint32_t a, std::uint32_t b) {
        const double difference = w_.beam[a].score - w_.beam[b].score;
        return difference > 0.0 || (difference == 0.0 && a < b);
      });
      return;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      std::uint32_t rank = 0;
      for (std::uint32_t k = 0; k < i; ++k) rank += drafts[k].score >= drafts[i].score;
      for (std::uint32_t k = i + 1; k < count; ++k) rank += drafts[k].score > drafts[i].score;
      w_.order[rank] = begin_ + i;
    }
  }

  const FusedTask& task_;
  FusedWorkspace& w_;
  std::uint32_t begin_ = 0;  // of the prefixes of the latest slot in w_.beam
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_BEAM_H_
