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

  // Prefetches what step 1 reads first and is known before: the records of unigrams, and the
  // children of the context and its suffixes. LoadCandidates gives memory time to answer.
  static void PrefetchFirst(const FusedTask& task) {
    if (task.lm == nullptr) return;
    const PackedLevel& unigrams = task.lm->levels()[0];
    for (std::uint32_t j = 0; j < task.num_slots; ++j) {
      for (const TokenId id : task.sausage.token_ids(j)) {
        Simd::Prefetch(unigrams.Record(task.lm->vocabulary().SymbolOf(id)));
      }
    }
    for (std::uint32_t length = 1; length <= task.start.length; ++length) {
      const auto [begin, end] = task.lm->Children(length, task.start.nodes[length - 1]);
      if (begin != end) PrefetchRun(task.lm->levels()[length], {begin, end});
    }
  }

  void Run() {
    w_.hits.size = 0;
    w_.hits.Reserve(1);
    w_.hits.size = 1;
    w_.hits.target[0] = 0;
    w_.hits.constant[0] = 0.0;
    w_.rows.size = 0;
    w_.row_begin.Clear();
    w_.symbol_tables.Resize(task_.num_slots);
    if (task_.has_unk) {
      w_.unk_lanes.Resize(std::size_t{task_.num_slots} * task_.lane_words);
      w_.lm_symbols.Resize(std::size_t{task_.num_slots} * task_.stride);
    }
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
    if (task_.has_unk) ReplaceUnknown(j, begin);
    if (Simd::kUsesTables && task_.stride <= 16) {
      MakeSymbolTable(Slot(j).symbols, task_.Width(j), &w_.symbol_tables[j]);
    }
    w_.hits.size += width;
    w_.rows.hits_begin[r] = begin;
    w_.rows.hits_begin[r + 1] = w_.hits.size;
    w_.rows.suffix[r] = r;
    w_.rows.backoff[r] = 0.0;
  }

  // The root row's hits from `begin` on are those of all lanes: <unk>'s for token ids that are
  // <unk> to the LM. No kernel finds such a lane: no n-gram has the symbol of an unlisted token id,
  // and those beyond the LM's symbols, which are in the last lanes, get one that no LM has.
  void ReplaceUnknown(std::uint32_t j, std::uint32_t begin) {
    constexpr Symbol kBeyond = kNoSymbol >> 1;
    const Vocabulary& vocabulary = task_.lm->vocabulary();
    std::uint64_t* unk_lanes = w_.unk_lanes.data() + std::size_t{j} * task_.lane_words;
    std::fill_n(unk_lanes, task_.lane_words, 0);
    const Symbol* symbols = w_.symbols.data() + task_.Lane(j, 0);
    std::copy_n(symbols, task_.stride, w_.lm_symbols.data() + task_.Lane(j, 0));
    for (std::uint32_t lane = 0; lane < task_.Width(j); ++lane) {
      const Symbol symbol = symbols[lane];
      if (vocabulary.is_token(symbol) && !vocabulary.is_unlisted(symbol)) continue;
      unk_lanes[lane / 64] |= std::uint64_t{1} << (lane % 64);
      w_.hits.node[begin + lane] = vocabulary.unk;
      if (vocabulary.is_token(symbol)) continue;
      w_.lm_symbols[task_.Lane(j, lane)] = kBeyond;
      w_.symbols16[task_.Lane(j, lane)] = 0xffff;
    }
  }

  std::uint64_t* LaneBits(std::uint32_t r) {
    return w_.rows.lane_bits.data() + std::size_t{r} * task_.lane_words;
  }

  // All rows of one length: from the context, then from the hits of rows one symbol shorter.
  void FindRows(std::uint32_t length) {
    BeginBoundary();
    for (FusedWorkList* list : {&w_.tiny, &w_.small, &w_.large}) {
      list->hits.Clear();
      list->begin.Clear();
    }
    const PackedLevel& level = task_.lm->levels()[length];
    level_ = &level;
    first_history_ = HitsBegin(length - 1, 0);
    w_.runs.Resize(HitsBegin(length - 1, task_.num_slots - 1) - first_history_);
    level.form.key_bytes == 2 ? FindRowsOf<std::uint16_t>(level, length)
                              : FindRowsOf<std::uint32_t>(level, length);
  }

  // The same for a level's size of keys.
  template <typename Key>
  void FindRowsOf(const PackedLevel& level, std::uint32_t length) {
    const FusedLevel<Key> keys(level);
    const FusedRun start = start_run_ = FindStartRun(keys, length);
    for (std::uint32_t j = 0; j < task_.num_slots; ++j) {
      ScoreHits(length - 1, j);
      if (j + 1 == task_.num_slots) break;
      ReadRuns(length, j);
      ListWork(length, j);
    }
    for (FusedWorkList* list : {&w_.tiny, &w_.small, &w_.large}) list->EndList();
    if (task_.num_slots > 1) FindBlocks(keys, 0);
    AddStartRow(keys, length, start);
    for (std::uint32_t j = 0; j + 1 < task_.num_slots; ++j) {
      BeginBoundary();
      if (j + 2 < task_.num_slots) FindBlocks(keys, j + 1);  // prefetches them for the next turn
      SearchRuns(keys, j);
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
    const std::uint32_t* lanes = w_.hits.lane.data();
    double* scores = w_.hits.score.data();
    if (task_.lm != nullptr) {
      Simd::ScoreHits(level, task_.alpha, heads, w_.hits.node.data() + begin, lanes + begin,
                      end - begin, scores + begin);
    } else {
      for (std::uint32_t h = begin; h < end; ++h) scores[h] = heads[lanes[h]];
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
    Simd::ReadHistories(level, task_.alpha, w_.hits.node.data() + begin, end - begin,
                        w_.runs.data() + (begin - first_history_), w_.hits.constant.data() + begin);
  }

  // Which of those runs to search. Prefetches the first and the last keys of each.
  void ListWork(std::uint32_t length, std::uint32_t j) {
    const PackedLevel& level = task_.lm->levels()[length];
    const std::uint32_t begin = HitsBegin(length - 1, j);
    const std::uint32_t size = HitsBegin(length - 1, j + 1) - begin;
    FusedRunLists lists = {w_.tiny.BeginBoundary(size), w_.small.BeginBoundary(size),
                           w_.large.BeginBoundary(size)};
    Simd::ListRuns(w_.runs.data() + (begin - first_history_), w_.hits.target.data() + begin, begin,
                   size, RowBegin(length - 1, 0), Simd::TinyRun(w_.symbol_tables[j + 1]), &lists);
    w_.tiny.EndBoundary(lists.tiny);
    w_.small.EndBoundary(lists.small);
    w_.large.EndBoundary(lists.large);
    const std::uint8_t* keys = level.keys.data();
    const std::size_t key_bytes = level.form.key_bytes;
    for (const FusedWorkList* list : {&w_.tiny, &w_.small}) {
      for (const std::uint32_t hit : list->OfLastBoundary()) {
        const FusedRun run = RunOf(hit);
        Simd::Prefetch(keys + run.begin * key_bytes);
        Simd::Prefetch(keys + (run.end - 1) * key_bytes);
      }
    }
    for (const std::uint32_t hit : w_.large.OfLastBoundary()) PrefetchRun(level, RunOf(hit));
  }

  // The children of the history that a hit makes.
  FusedRun RunOf(std::uint32_t hit) const { return w_.runs[hit - first_history_]; }

  // Prefetches the keys of a run, or the samples of a large one.
  static void PrefetchRun(const PackedLevel& level, FusedRun run) {
    constexpr std::size_t kLine = 64;
    const bool is_large = run.end - run.begin > kLargeRun;
    const std::uint8_t* const keys = is_large ? level.samples.data() : level.keys.data();
    const std::uint32_t shift = is_large ? kSampleShift : 0;
    const std::size_t key_bytes = level.form.key_bytes;
    const std::uint8_t* at = keys + (run.begin >> shift) * key_bytes;
    const std::uint8_t* const last = keys + ((run.end - 1) >> shift) * key_bytes;
    for (; at < last; at += kLine) Simd::Prefetch(at);
    Simd::Prefetch(last);
  }

  // Boundary 0: the children of the suffix of the context of this length, or an empty run. Where a
  // shorter one has no hits, no longer one has. Prefetches the blocks of a large run.
  template <typename Key>
  FusedRun FindStartRun(const FusedLevel<Key>& level, std::uint32_t length) {
    if (length > task_.start.length) return {0, 0};
    const std::uint32_t node = task_.start.nodes[length - 1];
    w_.hits.constant[0] += task_.Scaled(task_.lm->levels()[length - 1].Backoff(node));
    const auto [begin, end] = task_.lm->Children(length, node);
    if (begin == end || w_.hits.target[0] < RowBegin(length - 1, 0)) return {0, 0};
    if (end - begin > kLargeRun) {
      w_.start_blocks.Resize(task_.stride);
      Simd::FindBlocks(level, {begin, end}, Query(Slot(0), w_.hits.target[0]),
                       w_.start_blocks.data());
    }
    return {begin, end};
  }

  template <typename Key>
  void AddStartRow(const FusedLevel<Key>& level, std::uint32_t length, FusedRun run) {
    if (run.begin == run.end) return;
    const std::uint32_t context = 0;  // hit 0
    const FusedBlock* blocks = w_.start_blocks.data();
    AddRows(Slot(0), {&context, 1},
            [=](std::size_t, std::uint32_t, const FusedQuery& query, const FusedOutput& out) {
              return run.end - run.begin <= kLargeRun
                         ? Simd::FindInSmallRun(level, run, query, out)
                         : Simd::FindInBlocks(level, query, blocks, out);
            });
    LeadToRows(RowBegin(length, 0));
  }

  // The blocks of the large runs at the boundary after slot j; prefetches them.
  template <typename Key>
  void FindBlocks(const FusedLevel<Key>& level, std::uint32_t j) {
    const FusedSlot slot = Slot(j + 1);
    const Span<std::uint32_t> large = w_.large.OfBoundary(j);
    Buffer<FusedBlock>& blocks = w_.blocks[j % 2];
    blocks.Resize(large.size() * task_.stride);
    for (std::size_t i = 0; i < large.size(); ++i) {
      Simd::FindBlocks(level, RunOf(large[i]), Query(slot, w_.hits.target[large[i]]),
                       blocks.data() + i * task_.stride);
    }
  }

  // The rows at the boundary after slot j, kind by kind.
  template <typename Key>
  void SearchRuns(const FusedLevel<Key>& level, std::uint32_t j) {
    const FusedSlot slot = Slot(j + 1);
    const FusedBlock* blocks = w_.blocks[j % 2].data();
    const std::uint32_t stride = task_.stride;
    const FusedRun* runs = w_.runs.data();
    const std::uint32_t first = first_history_;
    AddRows(slot, w_.tiny.OfBoundary(j),
            [=](std::size_t, std::uint32_t hit, const FusedQuery& query, const FusedOutput& out) {
              return Simd::FindInTinyRun(level, runs[hit - first], query, out);
            });
    AddRows(slot, w_.small.OfBoundary(j),
            [=](std::size_t, std::uint32_t hit, const FusedQuery& query, const FusedOutput& out) {
              return Simd::FindInSmallRun(level, runs[hit - first], query, out);
            });
    AddRows(slot, w_.large.OfBoundary(j),
            [=](std::size_t i, std::uint32_t, const FusedQuery& query, const FusedOutput& out) {
              return Simd::FindInBlocks(level, query, blocks + i * stride, out);
            });
  }

  // Searches each of the runs with find(i, hit, query, out) for the candidates that the suffix's
  // row hit; a history that has some gets a row. (What is written for one without stays beyond the
  // end: whether there are any is unpredictable, and a mispredicted branch costs more than the
  // writes.)
  template <typename Find>
  void AddRows(const FusedSlot& slot, Span<std::uint32_t> work, const Find& find) {
    constexpr std::size_t kBatch = 256;
    for (std::size_t begin = 0; begin < work.size(); begin += kBatch) {
      const std::size_t end = std::min(work.size(), begin + kBatch);
      w_.hits.Reserve(static_cast<std::uint32_t>(end - begin) * task_.stride);
      w_.rows.Reserve(static_cast<std::uint32_t>(end - begin), task_.lane_words);
      std::uint32_t r = w_.rows.size;
      std::uint32_t hits_end = w_.hits.size;
      const FusedOutput all = {w_.hits.lane.data(), w_.hits.node.data(), w_.hits.suffix_hit.data(),
                               w_.rows.lane_bits.data()};
      // In locals: a vector store may alias any member, which would then be read again.
      const std::uint32_t* targets = w_.hits.target.data();
      const std::uint32_t lane_words = task_.lane_words;
      const bool has_unk = slot.unk_lanes != nullptr;
      std::uint32_t* hits_begin = w_.rows.hits_begin.data();
      std::uint32_t* hits = w_.rows.hit.data();
      for (std::size_t i = begin; i < end; ++i) {
        const FusedOutput out = {all.lane + hits_end, all.node + hits_end,
                                 all.suffix_hit + hits_end,
                                 all.lane_bits + std::size_t{r} * lane_words};
        const std::uint32_t hit = work[i], suffix = targets[hit];
        const FusedQuery query = {slot, all.lane_bits + std::size_t{suffix} * lane_words,
                                  hits_begin[suffix]};
        std::uint32_t count = find(i, hit, query, out);
        if (has_unk) count = AddUnk(hit, query, count, out);
        hits[r] = hit;
        hits_end += count;
        r += count != 0;
        hits_begin[r] = hits_end;
      }
      w_.hits.size = hits_end;
      w_.rows.size = r;
    }
  }

  // Not inlined: most LMs have no <unk> among candidates, and the loop around it is the hot one.
  [[gnu::noinline, gnu::cold]] std::uint32_t AddUnk(std::uint32_t hit, const FusedQuery& query,
                                                    std::uint32_t count,
                                                    const FusedOutput& out) const {
    const FusedRun run = hit == 0 ? start_run_ : RunOf(hit);
    const std::uint32_t node = level_->Find(run.begin, run.end, task_.lm->vocabulary().unk);
    return node == kNoNode ? count : AddUnkHits(query, node, count, out);
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
    const Symbol* symbols = task_.has_unk ? w_.lm_symbols.data() : w_.symbols.data();
    const std::size_t words = std::size_t{j} * task_.lane_words;
    return {symbols + task_.Lane(j, 0), w_.symbols16.data() + task_.Lane(j, 0),
            w_.symbol_tables.data() + j, task_.has_unk ? w_.unk_lanes.data() + words : nullptr,
            task_.stride};
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
  std::uint32_t first_history_ = 0;     // the first hit of the length whose rows are being found
  const PackedLevel* level_ = nullptr;  // of those rows
  FusedRun start_run_ = {0, 0};         // the children of the context's suffix of that length
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
