// What one thread's searches remember between calls: buffers, so that a warm call allocates
// nothing. See docs/search.md for the words row, hit, lane and boundary.
#ifndef LATTICE_BPD_DRAFT_FUSED_WORKSPACE_H_
#define LATTICE_BPD_DRAFT_FUSED_WORKSPACE_H_

#include <cstdint>

#include "lattice_bpd/base/buffer.h"
#include "lattice_bpd/base/label.h"
#include "lattice_bpd/lm/packed_level.h"

namespace lattice_bpd {

// Lanes are the candidates of a slot by rising token id, padded to a multiple of this.
constexpr std::uint32_t kFusedLanes = 8;

// Hits: n-grams of the LM that end in a candidate of the slot behind their row, by row, within a
// row by lane. One array for each field.
struct FusedHits {
  Buffer<std::uint32_t> lane;
  Buffer<std::uint32_t> node;        // in the level of the row's length
  Buffer<std::uint32_t> suffix_hit;  // the same lane's hit in the suffix's row
  std::uint32_t size = 0;

  // Makes room for `extra` hits behind the last; they count once `size` says so.
  void Reserve(std::uint32_t extra) {
    if (size + extra <= lane.size()) return;
    const std::size_t room = 2 * (std::size_t{size} + extra);
    lane.Resize(room);
    node.Resize(room);
    suffix_hit.Resize(room);
  }
};

// What FindHits (fused_scalar.cc) looks for: the candidates that the row of a suffix hit.
struct FusedQuery {
  const Symbol* symbols;           // of the slot's lanes; padding is kNoSymbol
  const std::uint16_t* symbols16;  // the same in 16 bits, for levels of 2-byte keys
  std::uint32_t num_lanes;         // padded
  const std::uint64_t* lane_bits;  // the suffix row's hits as bits ..
  const std::uint32_t* lanes;      // .. and as a list
  std::uint32_t num_hits;
  std::uint32_t first_hit;  // index of the list's first entry
};

// Where FindHits writes; each has room for kFusedSpare entries more than the query has hits.
struct FusedOutput {
  std::uint32_t* lane;
  std::uint32_t* node;
  std::uint32_t* suffix_hit;
  std::uint64_t* lane_bits;  // zero when FindHits gets them
};
constexpr std::uint32_t kFusedSpare = 16;

// Sets the bits of the first `count` hits of an output and asks for their records.
inline void MarkHits(const PackedLevel& level, const FusedOutput& out, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    out.lane_bits[out.lane[i] / 64] |= std::uint64_t{1} << (out.lane[i] % 64);
    __builtin_prefetch(level.Record(out.node[i]));
  }
}

// Where a path stands after the candidate of a hit.
struct FusedTarget {
  std::uint32_t row;  // of the longest history with hits
  bool own_row;       // that history is this n-gram itself
  double constant;    // the backoffs of the longer histories that have none
};

// A history that has hits among the candidates of the slot behind it.
struct FusedRow {
  std::uint32_t hits_begin;
  std::uint32_t hits_end;
  std::uint32_t suffix;  // the row of the history without its first symbol; its own for the root
  std::uint32_t length;  // symbols of the history
  std::uint32_t place;   // of its values in the workspace
  double backoff;        // alpha * ln backoff of the history, on the grid
  double best;           // score of the best completion from here
};

// A prefix of a draft: where it is, and how good its best completion is.
struct FusedPrefix {
  std::uint32_t row;
  std::uint32_t parent;  // index in the beam one slot before
  std::uint32_t lane;
  double score;
};

// The children of a history: nodes begin .. end - 1 of the next level.
struct FusedRun {
  std::uint32_t begin;
  std::uint32_t end;
};

struct FusedWorkspace {
  Buffer<std::uint32_t> symbols;    // (slots, stride), kNoSymbol in the padding
  Buffer<std::uint16_t> symbols16;  // the same, cut to 16 bits
  Buffer<double> head_scores;       // (slots, stride), -inf in the padding
  Buffer<std::uint32_t> order;
  Buffer<std::uint64_t> sorted;

  FusedHits hits;
  Buffer<FusedTarget> targets;      // one for each hit
  Buffer<std::uint64_t> hit_lanes;  // (rows, ceil(stride / 64)) bits: which lanes are hits
  Buffer<FusedRow> rows;
  Buffer<std::uint32_t> row_begin;  // (lengths, slots): the first row of a length at a boundary
  Buffer<FusedRun> runs;
  Buffer<double> values;      // (rows, stride): scores of lanes up to the lattice's end
  Buffer<double> chain;       // the same of a row and its suffixes, when recomputed
  Buffer<FusedPrefix> beam;   // of all slots, one behind the other
  Buffer<FusedPrefix> found;  // of the next slot, before the best are chosen
  Buffer<double> scores;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_WORKSPACE_H_
