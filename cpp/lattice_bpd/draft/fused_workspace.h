// What one thread's searches remember between calls: buffers, so that a warm call allocates
// nothing. See docs/search.md for the words row, hit, lane and boundary.
#ifndef LATTICE_BPD_DRAFT_FUSED_WORKSPACE_H_
#define LATTICE_BPD_DRAFT_FUSED_WORKSPACE_H_

#include <cstdint>

#include "lattice_bpd/base/buffer.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

// Lanes are the candidates of a slot by rising token id, padded to a multiple of this.
constexpr std::uint32_t kFusedLanes = 8;

// An n-gram of the LM that ends in a candidate of the slot behind its row.
struct FusedHit {
  std::uint32_t lane;
  std::uint32_t node;        // in the level of the row's length
  std::uint32_t suffix_hit;  // the same lane's hit in the suffix's row
};

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
  Buffer<std::uint32_t> symbols;  // (slots, stride)
  Buffer<double> head_scores;     // (slots, stride), -inf in the padding
  Buffer<std::uint32_t> order;
  Buffer<std::uint64_t> sorted;

  Buffer<FusedHit> hits;
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
