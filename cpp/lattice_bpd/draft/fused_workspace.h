// The buffers that one thread's searches keep between calls, so that a warm call allocates
// nothing. See docs/concepts.md for the words row, hit, lane and boundary.
#ifndef LATTICE_BPD_DRAFT_FUSED_WORKSPACE_H_
#define LATTICE_BPD_DRAFT_FUSED_WORKSPACE_H_

#include <cstdint>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/buffer.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

// Lanes are the candidates of a slot by increasing token id, padded to a multiple of this.
constexpr std::uint32_t kFusedLanes = 8;

// Vector code may write this many elements more than count.
constexpr std::uint32_t kFusedSpare = 16;

// Hits: n-grams of the LM that end in a candidate of the slot after their row, by row, within a
// row by lane. One array for each field.
struct FusedHits {
  Buffer<std::uint32_t> lane;
  Buffer<std::uint32_t> node;        // in the level of the row's length
  Buffer<std::uint32_t> suffix_hit;  // the same lane's hit in the suffix's row
  Buffer<std::uint32_t> target;      // the next row of a path: the row of the longest
                                     // history with hits
  Buffer<double> constant;           // the backoffs of the longer histories that have none
  Buffer<double> score;              // head score + alpha * ln P of the n-gram
  std::uint32_t size = 0;

  // Reserves space for `extra` hits after the last; they count once `size` says so.
  void Reserve(std::uint32_t extra) {
    if (std::size_t{size} + extra + kFusedSpare > lane.size()) Grow(extra);
  }

 private:
  // Apart from Reserve, to keep it out of the way of what calls that.
  [[gnu::noinline]] void Grow(std::uint32_t extra) {
    const std::size_t needed = std::size_t{size} + extra + kFusedSpare;
    lane.Resize(2 * needed);
    node.Resize(2 * needed);
    suffix_hit.Resize(2 * needed);
    target.Resize(2 * needed);
    constant.Resize(2 * needed);
    score.Resize(2 * needed);
  }
};

// A small perfect hash of a slot's symbols, for vector code: symbol w can only be that of the lane
// at entry (w * factor mod 2^16) / 2^10.
struct FusedSymbolTable {
  std::uint16_t factor = 0;            // 0 where there is no table
  alignas(64) std::uint8_t lanes[64];  // 0 where empty
  std::uint8_t bytes[4][16];           // of the symbols of the lanes, the lowest first
};

// The children of a history: nodes begin .. end - 1 of the next level.
struct FusedRun {
  std::uint32_t begin;
  std::uint32_t end;
};

// The part of a large run that could have a lane's symbol, as Simd::FindBlocks says.
struct FusedBlock {
  std::uint32_t base;  // node of the first key of a block of kSampleStride
  std::uint32_t keys;  // bits: which of its keys belong to the run
};

// Where hits go by kind of their run, which has room for kFusedSpare more.
struct FusedRunLists {
  std::uint32_t* tiny;
  std::uint32_t* small;
  std::uint32_t* large;
};

// The hits whose children are searched, for one kind of run: each kind is done in a loop of its
// own, so that processors need not guess.
struct FusedWorkList {
  Buffer<std::uint32_t> hits;
  Buffer<std::uint32_t> begin;  // where those of each boundary start, and where those of the last
                                // one end

  // Where up to `most` hits for the next boundary go.
  std::uint32_t* BeginBoundary(std::size_t most) {
    begin.Append(static_cast<std::uint32_t>(hits.size()));
    hits.Reserve(hits.size() + most + kFusedSpare);
    return hits.end();
  }
  void EndBoundary(const std::uint32_t* end) { hits.Resize(end - hits.data()); }
  Span<std::uint32_t> OfLastBoundary() const {
    return {hits.data() + begin[begin.size() - 1], hits.size() - begin[begin.size() - 1]};
  }
  Span<std::uint32_t> OfBoundary(std::uint32_t j) const {
    return {hits.data() + begin[j], begin[j + 1] - begin[j]};
  }
  void EndList() { begin.Append(static_cast<std::uint32_t>(hits.size())); }
};

// Rows: histories that have hits among the candidates of the slot after them. One array for each
// field.
struct FusedRows {
  Buffer<std::uint32_t> hits_begin;  // a row's hits end where those of the next row begin
  Buffer<std::uint32_t> suffix;      // the row of the history without its first symbol; its own for
                                     // the root
  Buffer<std::uint32_t> hit;         // of the history itself, in a row one symbol shorter; of no
                                     // meaning at boundary 0 and for roots
  Buffer<double> backoff;            // alpha * ln backoff of the history
  Buffer<std::uint64_t> lane_bits;   // (rows, ceil(stride / 64)): which lanes are hits
  std::uint32_t size = 0;

  // Reserves space for `extra` rows after the last; they count once `size` says so.
  void Reserve(std::uint32_t extra, std::uint32_t lane_words) {
    const std::size_t needed = std::size_t{size} + extra + 1;
    if (needed > hit.size() || needed * lane_words > lane_bits.size()) Grow(needed, lane_words);
  }

 private:
  [[gnu::noinline]] void Grow(std::size_t needed, std::uint32_t lane_words) {
    hits_begin.Resize(2 * needed);
    suffix.Resize(2 * needed);
    hit.Resize(2 * needed);
    backoff.Resize(2 * needed);
    lane_bits.Resize(2 * needed * lane_words);
  }
};

// A prefix of a draft: where it is, and how good its best completion is.
struct FusedPrefix {
  std::uint32_t row;
  std::uint32_t parent;  // index in the beam one slot before
  std::uint32_t lane;
  double score;
};

// A prefix that is, or may become, a node of a tree.
struct FusedNode {
  double value;        // what prefixes are ranked by
  double log_prob;     // ln of its probability, maybe not yet normalized
  std::uint32_t row;   // after it; known once it is a node, and none after the last slot
  std::uint32_t lane;  // of its last token
  std::int32_t parent;
  std::int32_t depth;
};

struct FusedWorkspace {
  Buffer<std::uint32_t> symbols;    // (slots, stride), kNoSymbol in the padding
  Buffer<std::uint16_t> symbols16;  // the same, cut to 16 bits
  Buffer<double> head_scores;       // (slots, stride), -inf in the padding
  Buffer<std::uint32_t> order;      // (slots, stride): the lane of each candidate; then of drafts
  Buffer<std::uint64_t> sorted;

  Buffer<double> transitions;       // (slots - 1, stride, stride): from lane to lane
  Buffer<std::uint32_t> last_lane;  // of rows at boundary 1 or later but roots, with transitions
  Buffer<std::uint32_t> lane_rows;  // of a boundary: the row of each lane, or kNoNode

  Buffer<FusedSymbolTable> symbol_tables;
  Buffer<std::uint64_t> unk_lanes;   // (slots, ceil(stride / 64)): of token ids that are <unk>
  Buffer<std::uint32_t> lm_symbols;  // (slots, stride): symbols, but none beyond the LM's

  FusedHits hits;
  FusedRows rows;
  Buffer<std::uint32_t> row_begin;  // (lengths, slots): the first row of a length at a boundary
  Buffer<FusedRun> runs;            // of the hits of one length that make histories
  FusedWorkList tiny, small, large;
  Buffer<FusedBlock> blocks[2];     // (large runs of a boundary, stride), of even and odd ones
  Buffer<FusedBlock> start_blocks;  // of the context's run

  Buffer<double> worth;   // of each row: score of the best completion from there, or ln of
                          // the mass of all
  Buffer<double> values;  // (rows, stride): scores of lanes up to the lattice's end
  Buffer<std::uint32_t> value_row;  // which row of `values` or `masses` is a row's
  Buffer<double> chain;             // values of a row and its suffixes, when recomputed

  Buffer<double> masses;              // (rows of a boundary, stride): of lanes, see MassFinder; for
                                      // chains (rows of a boundary, 2, stride)
  Buffer<double> sums;                // of those rows: of their masses, then ln of it
  Buffer<double> hit_masses;          // of hits
  Buffer<double> factors;             // of rows: exp of their backoffs
  Buffer<double> transition_factors;  // exp of transitions
  Buffer<double> alone;               // of one row: masses divided by that of its best lane

  // For chains (fused_chain.h), likewise.
  Buffer<double> hit_weighted;  // of hits: masses times `lengths` of the next row
  Buffer<double> bests;         // of the rows of a boundary: the largest weighted mass
  Buffer<double> logs;          // likewise: of what becomes `gains`
  Buffer<double> lengths;       // of rows: 1 + greatest expected accept length from there
  Buffer<double> gains;         // of rows: ln of `lengths`
  Buffer<double> gained;        // of hits: scores with the next row's gains

  Buffer<FusedPrefix> beam;     // of all slots, concatenated
  Buffer<double> found_scores;  // of the next slot's prefixes, before the best are chosen
  Buffer<std::uint32_t> found_lanes;
  Buffer<std::uint32_t> found_parents;

  Buffer<FusedNode> nodes;
  Buffer<FusedNode> heap;
  Buffer<FusedNode> children;        // of the root and all nodes, concatenated
  Buffer<std::uint32_t> fork_begin;  // where those of the root, node 0, node 1, .. begin
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_WORKSPACE_H_
