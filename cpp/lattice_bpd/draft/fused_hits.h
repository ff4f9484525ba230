// Step 1 of the fused search (fused_search.h): finds the hits, and the rows that have them.
#ifndef LATTICE_BPD_DRAFT_FUSED_HITS_H_
#define LATTICE_BPD_DRAFT_FUSED_HITS_H_

#include "lattice_bpd/draft/fused_runs.h"
#include "lattice_bpd/draft/fused_task.h"

namespace lattice_bpd {
namespace {

// Where the beam begins: the row of the context, and what its longer suffixes without rows cost.
struct FusedStart {
  std::uint32_t row = 0;
  double constant = 0.0;
};

// Boundary j lies before slot j. Rows stand by length, within a length by boundary: all rows of
// one length are found in one pass over all boundaries, since they depend on shorter ones only.
// So there is always other work to do while memory answers.
template <typename Simd>
class HitFinder {
 public:
  HitFinder(const FusedTask& task, FusedWorkspace* workspace) : task_(task), w_(*workspace) {}

  FusedStart Run() {
    w_.hits.size = 0;
    w_.rows.size = 0;
    w_.row_begin.Clear();
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) AddRoot(j);
    for (std::uint32_t length = 1; length <= task_.max_length; ++length) FindRows(length);
    BeginBoundary();
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) ScoreHits(task_.max_length, j);
    return start_;
  }

 private:
  // The rows of `length` symbols at boundary j are RowBegin(length, j) .. RowBegin(length, j + 1).
  std::uint32_t RowBegin(std::uint32_t length, std::uint32_t j) const {
    return w_.row_begin[std::size_t{length} * task_.num_slots + j];
  }
  void BeginBoundary() { w_.row_begin.Append(w_.rows.size); }

  // Likewise their hits, which stand in the order of their rows.
  std::uint32_t HitsBegin(std::uint32_t length, std::uint32_t j) const {
    const std::uint32_t r = RowBegin(length, j);
    return r < w_.rows.size ? w_.rows[r].hits_begin : w_.hits.size;
  }

  // The root row (of the empty history). Its hits are all candidates: every symbol has a unigram.
  void AddRoot(std::uint32_t j) {
    BeginBoundary();
    const std::uint32_t begin = w_.hits.size;
    const std::uint32_t width = task_.Width(j);
    w_.hits.Reserve(width);
    std::uint64_t* lane_bits = LaneBitsOfNext();
    for (std::uint32_t lane = 0; lane < width; ++lane) {
      w_.hits.lane[begin + lane] = lane;
      w_.hits.node[begin + lane] = w_.symbols[task_.Lane(j, lane)];
      lane_bits[lane / 64] |= std::uint64_t{1} << (lane % 64);
    }
    w_.hits.size += width;
    w_.rows[w_.rows.size] = {begin, w_.hits.size, w_.rows.size, 0, 0, 0.0};
    ++w_.rows.size;
    PrefetchRecords(0, begin);
  }

  // All rows of one length: from the context, then from the hits of rows one symbol shorter.
  void FindRows(std::uint32_t length) {
    BeginBoundary();
    for (FusedWorkList* list : {&w_.tiny, &w_.small, &w_.large}) {
      list->items.Clear();
      list->begin.Clear();
    }
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) {
      ScoreHits(length - 1, j);
      if (j + 1 == task_.num_slots) break;
      ReadRuns(length, j);
      ListWork(length, j);
    }
    for (FusedWorkList* list : {&w_.tiny, &w_.small, &w_.large}) list->EndList();
    AddStartRow(length);
    const PackedLevel& level = task_.lm->levels()[length];
    for (std::uint32_t j = 0; j + 1 < task_.num_slots; ++j) {
      BeginBoundary();
      const std::uint32_t hits_begin = w_.hits.size;
      SearchRuns(level, length, j);
      LeadToRows(RowBegin(length, j + 1));
      PrefetchRecords(length, hits_begin);
    }
  }

  // Of the hits of one boundary: head score + alpha * ln P; and where they lead: where their
  // suffixes do, until they get rows of their own.
  void ScoreHits(std::uint32_t length, std::uint32_t j) {
    const std::uint32_t begin = HitsBegin(length, j);
    const std::uint32_t end = HitsBegin(length, j + 1);
    const double* heads = w_.head_scores.data() + task_.Lane(j, 0);
    const PackedLevel level = task_.lm == nullptr ? PackedLevel{} : task_.lm->levels()[length];
    for (std::uint32_t h = begin; h < end; ++h) {
      const double log_prob =
          task_.lm == nullptr ? 0.0 : task_.Scaled(level.LogProb(w_.hits.node[h]));
      w_.hits.score[h] = heads[w_.hits.lane[h]] + log_prob;
    }
    const bool is_last = j + 1 == task_.num_slots;
    const std::uint32_t root = is_last ? 0 : RowBegin(0, j + 1);
    for (std::uint32_t h = begin; h < end && !is_last; ++h) {
      // The suffix of a unigram is the empty history, the root.
      w_.hits.target[h] = length == 0 ? root : w_.hits.target[w_.hits.suffix_hit[h]];
      w_.hits.constant[h] = length == 0 ? 0.0 : w_.hits.constant[w_.hits.suffix_hit[h]];
    }
  }

  // Of the hits of one boundary, as histories: where their children stand, and what it costs to
  // lead to the suffix's row.
  void ReadRuns(std::uint32_t length, std::uint32_t j) {
    const PackedLevel level = task_.lm->levels()[length - 1];
    const std::uint32_t begin = HitsBegin(length - 1, j);
    const std::uint32_t end = HitsBegin(length - 1, j + 1);
    const std::uint32_t* nodes = w_.hits.node.data();
    double* constants = w_.hits.constant.data();
    w_.runs.Resize(end - begin);
    FusedRun* runs = w_.runs.data();
    for (std::uint32_t h = begin; h < end; ++h) {
      const auto [run_begin, run_end] = level.Children(nodes[h]);
      runs[h - begin] = {run_begin, run_end};
      constants[h] += task_.Scaled(level.Backoff(nodes[h]));
    }
  }

  // Which of those runs to search: a history can have hits only where its suffix has. Asks for
  // the first keys of each. Kinds and pointers are chosen by arithmetic: compilers make branches
  // of conditions, and processors cannot guess these.
  void ListWork(std::uint32_t length, std::uint32_t j) {
    const PackedLevel& level = task_.lm->levels()[length];
    const std::uint32_t begin = HitsBegin(length - 1, j);
    const auto size = static_cast<std::uint32_t>(w_.runs.size());
    const std::uint32_t first_row = RowBegin(length - 1, 0);
    const std::uint32_t tiny_run = Simd::TinyRun(level, task_.stride);
    const std::uint8_t* const keys[2] = {level.keys.data(), level.samples.data()};
    const std::size_t key_bytes = level.form.key_bytes;
    const std::uint32_t* targets = w_.hits.target.data() + begin;
    const FusedRun* runs = w_.runs.data();
    FusedWork* tiny = w_.tiny.BeginBoundary(size);
    FusedWork* small = w_.small.BeginBoundary(size);
    FusedWork* large = w_.large.BeginBoundary(size);
    for (std::uint32_t i = 0; i < size; ++i) {
      const FusedRun run = runs[i];
      const std::uint32_t num_keys = run.end - run.begin;
      const std::uint32_t above_none = num_keys != 0 && targets[i] >= first_row;
      const std::uint32_t above_tiny = above_none & std::uint32_t{num_keys > tiny_run};
      const std::uint32_t above_small = above_none & std::uint32_t{num_keys > kLargeRun};
      *tiny = {run, begin + i};
      *small = {run, begin + i};
      *large = {run, begin + i};
      tiny += above_none - above_tiny;
      small += above_tiny - above_small;
      large += above_small;
      const std::uint32_t block = run.begin >> (above_small * kSampleShift);
      Simd::Prefetch(keys[above_small] + block * key_bytes);
    }
    w_.tiny.EndBoundary(tiny);
    w_.small.EndBoundary(small);
    w_.large.EndBoundary(large);
  }

  // Boundary 0: the suffix of the context of this length. Where it has no hits, no longer one has.
  void AddStartRow(std::uint32_t length) {
    if (length > task_.start.length) return;
    const std::uint32_t node = task_.start.nodes[length - 1];
    const double backoff = task_.Scaled(task_.lm->levels()[length - 1].Backoff(node));
    const auto [begin, end] = task_.lm->Children(length, node);
    if (w_.rows[start_.row].length + 1 == length && begin != end) {
      const PackedLevel& level = task_.lm->levels()[length];
      const FusedRun run = {begin, end};
      const std::uint32_t count =
          AddRow(0, {0, 0, start_.row, length, 0, backoff},
                 [&](const FusedQuery& query, const FusedOutput& out) {
                   if (end - begin <= kLargeRun)
                     return Simd::FindInSmallRun(level, run, query, out);
                   w_.blocks.Resize(task_.stride);
                   Simd::FindBlocks(level, run, query, w_.blocks.data());
                   return Simd::FindInBlocks(level, query, w_.blocks.data(), out);
                 });
      if (count != 0) {
        start_.row = w_.rows.size - 1;
        return;
      }
    }
    start_.constant += backoff;
  }

  // The rows at the boundary behind slot j, kind by kind; while memory gets the blocks of large
  // runs, the others.
  void SearchRuns(const PackedLevel& level, std::uint32_t length, std::uint32_t j) {
    const std::uint32_t large_begin = w_.large.begin[j];
    const std::uint32_t large_end = w_.large.begin[j + 1];
    w_.blocks.Resize((std::size_t{large_end} - large_begin) * task_.stride);
    for (std::uint32_t i = large_begin; i < large_end; ++i) {
      const FusedWork work = w_.large.items[i];
      Simd::FindBlocks(level, work.run, Query(j + 1, w_.hits.target[work.hit]),
                       w_.blocks.data() + std::size_t{i - large_begin} * task_.stride);
    }
    for (std::uint32_t i = w_.tiny.begin[j]; i < w_.tiny.begin[j + 1]; ++i) {
      const FusedWork work = w_.tiny.items[i];
      AddRowOfHit(j + 1, length, work.hit, [&](const FusedQuery& query, const FusedOutput& out) {
        return Simd::FindInTinyRun(level, work.run, query, out);
      });
    }
    for (std::uint32_t i = w_.small.begin[j]; i < w_.small.begin[j + 1]; ++i) {
      const FusedWork work = w_.small.items[i];
      AddRowOfHit(j + 1, length, work.hit, [&](const FusedQuery& query, const FusedOutput& out) {
        return Simd::FindInSmallRun(level, work.run, query, out);
      });
    }
    const FusedBlock* blocks = w_.blocks.data();
    for (std::uint32_t i = large_begin; i < large_end; ++i, blocks += task_.stride) {
      const std::uint32_t hit = w_.large.items[i].hit;
      AddRowOfHit(j + 1, length, hit, [&](const FusedQuery& query, const FusedOutput& out) {
        return Simd::FindInBlocks(level, query, blocks, out);
      });
    }
  }

  // The row of the history that is a hit. Until it has one, it leads to its suffix's, and what it
  // pays for that is its backoff.
  template <typename Find>
  void AddRowOfHit(std::uint32_t slot, std::uint32_t length, std::uint32_t hit, const Find& find) {
    AddRow(slot, {0, 0, w_.hits.target[hit], length, hit, w_.hits.constant[hit]}, find);
  }

  // The hits from which rows come lead to those from now on.
  void LeadToRows(std::uint32_t begin) {
    for (std::uint32_t r = begin; r < w_.rows.size; ++r) {
      w_.hits.target[w_.rows[r].hit] = r;
      w_.hits.constant[w_.rows[r].hit] = 0.0;
    }
  }

  // Searches for the candidates that the suffix's row hit, and adds a row if there are any. (What
  // is written for a row without hits stays beyond the end: whether there are any is a coin toss,
  // and a wrong guess costs more than the writes.) Returns how many there are.
  template <typename Find>
  std::uint32_t AddRow(std::uint32_t slot, FusedRow row, const Find& find) {
    const std::uint32_t begin = w_.hits.size;
    w_.hits.Reserve(task_.stride);
    std::uint64_t* lane_bits = LaneBitsOfNext();
    const FusedOutput out = {w_.hits.lane.data() + begin, w_.hits.node.data() + begin,
                             w_.hits.suffix_hit.data() + begin, lane_bits};
    const std::uint32_t count = find(Query(slot, row.suffix), out);
    w_.hits.size = begin + count;
    row.hits_begin = begin;
    row.hits_end = begin + count;
    w_.rows[w_.rows.size] = row;
    w_.rows.size += count != 0;
    return count;
  }

  FusedQuery Query(std::uint32_t slot, std::uint32_t suffix_row) const {
    const FusedRow& suffix = w_.rows[suffix_row];
    return {w_.symbols.data() + task_.Lane(slot, 0),
            w_.symbols16.data() + task_.Lane(slot, 0),
            task_.stride,
            w_.rows.lane_bits.data() + std::size_t{suffix_row} * task_.lane_words,
            w_.hits.lane.data() + suffix.hits_begin,
            suffix.hits_end - suffix.hits_begin,
            suffix.hits_begin};
  }

  // The bits of the row that comes next, none set.
  std::uint64_t* LaneBitsOfNext() {
    w_.rows.Reserve(task_.lane_words);
    std::uint64_t* bits = w_.rows.lane_bits.data() + std::size_t{w_.rows.size} * task_.lane_words;
    bits[0] = 0;
    for (std::uint32_t i = 1; i < task_.lane_words; ++i) bits[i] = 0;
    return bits;
  }

  // Asks for the records of all hits from `begin` on.
  void PrefetchRecords(std::uint32_t length, std::uint32_t begin) {
    if (task_.lm == nullptr) return;
    const PackedLevel& level = task_.lm->levels()[length];
    const std::uint8_t* payload = level.payload.data();
    const std::size_t stride = level.form.record_bytes();
    const std::uint32_t* nodes = w_.hits.node.data();
    for (std::uint32_t h = begin; h < w_.hits.size; ++h)
      Simd::Prefetch(payload + nodes[h] * stride);
  }

  const FusedTask& task_;
  FusedWorkspace& w_;
  FusedStart start_;
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_HITS_H_
