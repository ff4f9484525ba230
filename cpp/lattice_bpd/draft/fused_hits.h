// Step 1 of the fused search (fused_search.h): finds the hits, and the rows that have them.
#ifndef LATTICE_BPD_DRAFT_FUSED_HITS_H_
#define LATTICE_BPD_DRAFT_FUSED_HITS_H_

#include "lattice_bpd/draft/fused_runs.h"
#include "lattice_bpd/draft/fused_task.h"

namespace lattice_bpd {
namespace {

// Boundary j lies before slot j. Rows are ordered by length, within a length by boundary: all rows
// of one length are found in one pass over all boundaries, since they depend on shorter ones only.
// So there is always other work to do while memory answers.
//
// Hit 0 is the context: where it leads to is where the beam begins.
template <typename Simd>
class HitFinder {
 public:
  HitFinder(const FusedTask& task, FusedWorkspace* workspace) : task_(task), w_(*workspace) {}

  void Run() {
    w_.hits.size = 0;
    w_.hits.Reserve(1);
    w_.hits.size = 1;
    w_.hits.target[0] = 0;
    w_.hits.constant[0] = 0.0;
    w_.rows.size = 0;
    w_.row_begin.Clear();
    w_.symbol_tables.Resize(task_.num_slots);
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) AddRoot(j);
    for (std::uint32_t length = 1; length <= task_.max_length; ++length) FindRows(length);
    BeginBoundary();
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) ScoreHits(task_.max_length, j);
  }

 private:
  // The rows of `length` symbols at boundary j are RowBegin(length, j) .. RowBegin(length, j + 1).
  std::uint32_t RowBegin(std::uint32_t length, std::uint32_t j) const {
    return w_.row_begin[std::size_t{length} * task_.num_slots + j];
  }
  void BeginBoundary() { w_.row_begin.Append(w_.rows.size); }

  // Likewise their hits, which are in the order of their rows.
  std::uint32_t HitsBegin(std::uint32_t length, std::uint32_t j) const {
    return w_.rows.hits_begin[RowBegin(length, j)];
  }

  // The root row (of the empty history). Its hits are all candidates: every symbol has a unigram.
  void AddRoot(std::uint32_t j) {
    BeginBoundary();
    w_.symbol_tables[j].factor = 0;
    if (Simd::kUsesTables && task_.stride <= 16) {
      MakeSymbolTable(w_.symbols.data() + task_.Lane(j, 0), task_.Width(j), &w_.symbol_tables[j]);
    }
    const std::uint32_t begin = w_.hits.size;
    const std::uint32_t width = task_.Width(j);
    w_.hits.Reserve(width);
    w_.rows.Reserve(1, task_.lane_words);
    const std::uint32_t r = w_.rows.size++;
    std::uint64_t* lane_bits = LaneBits(r);
    std::fill(lane_bits, lane_bits + task_.lane_words, 0);
    for (std::uint32_t lane = 0; lane < width; ++lane) {
      w_.hits.lane[begin + lane] = lane;
      w_.hits.node[begin + lane] = w_.symbols[task_.Lane(j, lane)];
      lane_bits[lane / 64] |= std::uint64_t{1} << (lane % 64);
    }
    w_.hits.size += width;
    w_.rows.hits_begin[r] = begin;
    w_.rows.hits_begin[r + 1] = w_.hits.size;
    w_.rows.suffix[r] = r;
    w_.rows.backoff[r] = 0.0;
  }

  std::uint64_t* LaneBits(std::uint32_t r) {
    return w_.rows.lane_bits.data() + std::size_t{r} * task_.lane_words;
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
      SearchRuns(level, j);
      LeadToRows(RowBegin(length, j + 1));
    }
  }

  // Of the hits of one boundary: head score + alpha * ln P; and where they lead: where their
  // suffixes do, until they get rows of their own.
  void ScoreHits(std::uint32_t length, std::uint32_t j) {
    const std::uint32_t begin = HitsBegin(length, j);
    const std::uint32_t end = HitsBegin(length, j + 1);
    const double* heads = w_.head_scores.data() + task_.Lane(j, 0);
    const PackedLevel level = task_.lm == nullptr ? PackedLevel{} : task_.lm->levels()[length];
    if (task_.lm != nullptr) {  // a boundary ahead
      if (j == 0) PrefetchRecords(level, begin, end);
      if (j + 1 < task_.num_slots) PrefetchRecords(level, end, HitsBegin(length, j + 2));
    }
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

  // Of the hits of one boundary, as histories: where their children are, and what it costs to
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

  // Which of those runs to search: a history can have hits only where its suffix has. Prefetches
  // the first and the last keys of each. Kinds and pointers are chosen by arithmetic: compilers
  // make branches of conditions, and processors cannot guess these.
  void ListWork(std::uint32_t length, std::uint32_t j) {
    const PackedLevel& level = task_.lm->levels()[length];
    const std::uint32_t begin = HitsBegin(length - 1, j);
    const auto size = static_cast<std::uint32_t>(w_.runs.size());
    const std::uint32_t first_row = RowBegin(length - 1, 0);
    const std::uint32_t tiny_run = Simd::TinyRun(level, w_.symbol_tables[j + 1]);
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
      const std::uint8_t* from = keys[above_small];
      const std::uint32_t shift = above_small * kSampleShift;
      Simd::Prefetch(from + (run.begin >> shift) * key_bytes);
      Simd::Prefetch(from + ((run.end - above_none) >> shift) * key_bytes);
    }
    w_.tiny.EndBoundary(tiny);
    w_.small.EndBoundary(small);
    w_.large.EndBoundary(large);
    PrefetchSamples(level, w_.large.OfLastBoundary());
  }

  // Prefetches the lines of samples between the first and the last of each large run.
  void PrefetchSamples(const PackedLevel& level, Span<FusedWork> large) {
    constexpr std::size_t kLine = 64;
    const std::size_t key_bytes = level.form.key_bytes;
    for (const FusedWork& work : large) {
      const std::uint8_t* line =
          level.samples.data() + (work.run.begin >> kSampleShift) * key_bytes + kLine;
      const std::uint8_t* last = level.samples.data() + (work.run.end >> kSampleShift) * key_bytes;
      for (; line < last; line += kLine) Simd::Prefetch(line);
    }
  }

  // Boundary 0: the suffix of the context of this length. Where it has no hits, no longer one has.
  void AddStartRow(std::uint32_t length) {
    if (length > task_.start.length) return;
    const std::uint32_t node = task_.start.nodes[length - 1];
    w_.hits.constant[0] += task_.Scaled(task_.lm->levels()[length - 1].Backoff(node));
    const auto [begin, end] = task_.lm->Children(length, node);
    if (begin == end || w_.hits.target[0] < RowBegin(length - 1, 0)) return;
    const PackedLevel& level = task_.lm->levels()[length];
    const FusedWork work = {{begin, end}, 0};
    w_.blocks.Resize(task_.stride);
    AddRows(Slot(0), {&work, 1}, [&](std::size_t, const FusedQuery& query, const FusedOutput& out) {
      const std::uint32_t size = work.run.end - work.run.begin;
      if (size <= kLargeRun) return Simd::FindInSmallRun(level, work.run, query, out);
      Simd::FindBlocks(level, work.run, query, w_.blocks.data());
      return Simd::FindInBlocks(level, query, w_.blocks.data(), out);
    });
    LeadToRows(RowBegin(length, 0));
  }

  // The rows at the boundary after slot j, kind by kind; while memory gets the blocks of large
  // runs, the others.
  void SearchRuns(const PackedLevel& level, std::uint32_t j) {
    const FusedSlot slot = Slot(j + 1);
    const Span<FusedWork> tiny = w_.tiny.OfBoundary(j);
    const Span<FusedWork> small = w_.small.OfBoundary(j);
    const Span<FusedWork> large = w_.large.OfBoundary(j);
    w_.blocks.Resize(large.size() * task_.stride);
    FusedBlock* blocks = w_.blocks.data();
    for (std::size_t i = 0; i < large.size(); ++i) {
      Simd::FindBlocks(level, large[i].run, Query(slot, w_.hits.target[large[i].hit]),
                       blocks + i * task_.stride);
    }
    AddRows(slot, tiny, [&](std::size_t i, const FusedQuery& query, const FusedOutput& out) {
      return Simd::FindInTinyRun(level, tiny[i].run, query, out);
    });
    AddRows(slot, small, [&](std::size_t i, const FusedQuery& query, const FusedOutput& out) {
      return Simd::FindInSmallRun(level, small[i].run, query, out);
    });
    AddRows(slot, large, [&](std::size_t i, const FusedQuery& query, const FusedOutput& out) {
      return Simd::FindInBlocks(level, query, blocks + i * task_.stride, out);
    });
  }

  // Searches each of the runs with find(i, query, out) for the candidates that the suffix's row
  // hit; a history that has some gets a row. (What is written for one without stays beyond the
  // end: whether there are any is unpredictable, and a mispredicted branch costs more than the
  // writes.)
  template <typename Find>
  void AddRows(const FusedSlot& slot, Span<FusedWork> work, const Find& find) {
    constexpr std::size_t kBatch = 256;
    for (std::size_t begin = 0; begin < work.size(); begin += kBatch) {
      const std::size_t end = std::min(work.size(), begin + kBatch);
      w_.hits.Reserve(static_cast<std::uint32_t>(end - begin) * task_.stride);
      w_.rows.Reserve(static_cast<std::uint32_t>(end - begin), task_.lane_words);
      std::uint32_t r = w_.rows.size;
      std::uint32_t hits_end = w_.hits.size;
      const FusedOutput all = {w_.hits.lane.data(), w_.hits.node.data(), w_.hits.suffix_hit.data(),
                               w_.rows.lane_bits.data()};
      std::uint32_t* hits_begin = w_.rows.hits_begin.data();
      std::uint32_t* hits = w_.rows.hit.data();
      for (std::size_t i = begin; i < end; ++i) {
        const FusedOutput out = {all.lane + hits_end, all.node + hits_end,
                                 all.suffix_hit + hits_end,
                                 all.lane_bits + std::size_t{r} * task_.lane_words};
        const std::uint32_t count = find(i, Query(slot, w_.hits.target[work[i].hit]), out);
        hits[r] = work[i].hit;
        hits_end += count;
        r += count != 0;
        hits_begin[r] = hits_end;
      }
      w_.hits.size = hits_end;
      w_.rows.size = r;
    }
  }

  // The hits that got rows from `begin` on lead to those. So far they led to their suffixes' rows
  // and paid just their own backoff for it.
  void LeadToRows(std::uint32_t begin) {
    for (std::uint32_t r = begin; r < w_.rows.size; ++r) {
      const std::uint32_t h = w_.rows.hit[r];
      w_.rows.suffix[r] = w_.hits.target[h];
      w_.rows.backoff[r] = w_.hits.constant[h];
      w_.hits.target[h] = r;
      w_.hits.constant[h] = 0.0;
    }
  }

  FusedSlot Slot(std::uint32_t j) const {
    return {w_.symbols.data() + task_.Lane(j, 0), w_.symbols16.data() + task_.Lane(j, 0),
            w_.symbol_tables.data() + j, task_.stride};
  }
  FusedQuery Query(const FusedSlot& slot, std::uint32_t suffix_row) {
    return {slot, LaneBits(suffix_row), w_.rows.hits_begin[suffix_row]};
  }

  // Prefetches the records of hits, and the ends of their children, which the next ones hold.
  // Shortly before they are read: prefetched with the hits they would be evicted again by then.
  void PrefetchRecords(const PackedLevel& level, std::uint32_t begin, std::uint32_t end) {
    const std::size_t stride = level.form.record_bytes();
    const std::uint32_t* nodes = w_.hits.node.data();
    for (std::uint32_t h = begin; h < end; ++h) {
      const std::uint8_t* record = level.payload.data() + nodes[h] * stride;
      Simd::Prefetch(record);
      Simd::Prefetch(record + 2 * stride - 1);
    }
  }

  const FusedTask& task_;
  FusedWorkspace& w_;
};

// The row after a candidate: that of the longest history with a hit for it. The hits of a row are
// by lane, so those of lower lanes are counted; a search for it would be a wrong guess each time.
inline std::uint32_t TargetOf(const FusedTask& task, const FusedWorkspace& w, std::uint32_t r,
                              std::uint32_t lane) {
  const std::uint32_t words = task.lane_words;
  const std::uint64_t* lane_bits = w.rows.lane_bits.data();
  const std::uint32_t word = lane / 64;
  const std::uint64_t bit = std::uint64_t{1} << (lane % 64);
  for (std::uint32_t i = 0; i < task.max_length; ++i) {
    const bool is_hit = (lane_bits[std::size_t{r} * words + word] & bit) != 0;
    r = is_hit ? r : w.rows.suffix[r];
  }
  lane_bits += std::size_t{r} * words;
  auto rank = static_cast<std::uint32_t>(__builtin_popcountll(lane_bits[word] & (bit - 1)));
  for (std::uint32_t i = 0; i < word; ++i) {
    rank += static_cast<std::uint32_t>(__builtin_popcountll(lane_bits[i]));
  }
  return w.hits.target[w.rows.hits_begin[r] + rank];
}

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_HITS_H_
