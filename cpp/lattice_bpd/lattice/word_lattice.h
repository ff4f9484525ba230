// Lattices of a decoder of speech or text: any acyclic graph whose arcs have words and costs.
#ifndef LATTICE_BPD_LATTICE_WORD_LATTICE_H_
#define LATTICE_BPD_LATTICE_WORD_LATTICE_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

constexpr std::int32_t kNoWord = -1;  // of an epsilon arc

// As it comes: arcs in any order, costs on any scale. An infinite cost is that of no arc.
struct WordLatticeArrays {
  std::uint32_t num_states = 0;
  std::uint32_t start = 0;
  Span<std::int32_t> sources;
  Span<std::int32_t> targets;
  Span<std::int32_t> words;    // numbers of the caller's, kNoWord for epsilon
  Span<std::int32_t> symbols;  // what the LM counts for each word; not read where there is none
  Span<double> costs;
  Span<double> final_costs;  // of each state; infinite where it is not final
};

// Arcs of a state are neighbours, sorted by word; costs are on the score grid (score_grid.h).
struct WordLattice {
  struct Arc {
    std::uint32_t index;  // in the arrays
    std::uint32_t target;
    std::int32_t word;
    Symbol symbol;
    double cost;
  };

  std::uint32_t start = 0;
  std::vector<std::uint32_t> order;      // the states on a path from start to end, topologically
  std::vector<std::uint32_t> arc_begin;  // of each state, and one more entry
  std::vector<Arc> arcs;                 // on such a path
  std::vector<double> final_costs;
};

enum class LatticeFault { kNone, kCycle, kUnreachable, kNoPath };

struct LatticeCheck {
  LatticeFault fault = LatticeFault::kNone;
  std::uint32_t index = 0;  // kCycle: an arc of it; kUnreachable: the state
};

// Whether every state is reachable, no arcs form a cycle and some path ends. Throws ValueError
// where arrays differ in size, or states or costs are out of range (NaN, -inf, 2^28 on a path).
// O(states + arcs).
LatticeCheck CheckWordLattice(const WordLatticeArrays& arrays);

// Throws ValueError where CheckWordLattice finds a fault. O(arcs log arcs).
WordLattice BuildWordLattice(const WordLatticeArrays& arrays);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_WORD_LATTICE_H_
