// The sausage as an FST acceptor of any arc type.
#ifndef LATTICE_BPD_LATTICE_SAUSAGE_FST_H_
#define LATTICE_BPD_LATTICE_SAUSAGE_FST_H_

#include <fst/vector-fst.h>

#include "lattice_bpd/lattice/sausage.h"

namespace lattice_bpd {

// `cost` turns a score into a weight; the weight of an arc is that of the head score, times that of
// the transition where there are any. Without transitions: states 0 .. num_slots in a row, the last
// one final. With them: the start, a state for each candidate of all slots but the last, slot by
// slot, and the final one. Arcs leave a state in the order of the slot: by decreasing head score.
// No states without slots: such a lattice has no path, not an empty one.
template <typename Arc, typename Cost>
fst::VectorFst<Arc> BuildSausageFst(const Sausage& sausage, const Cost& cost) {
  using StateId = typename Arc::StateId;
  fst::VectorFst<Arc> out;
  if (sausage.num_slots() == 0) return out;
  const bool has_transitions = sausage.has_transitions();
  // States before a slot; arcs lead to one state each or all to the same.
  const auto states_before = [&](std::size_t slot) {
    return has_transitions && slot > 0 && slot < sausage.num_slots() ? sausage.width(slot - 1) : 1;
  };
  StateId from = out.AddState();
  out.SetStart(from);
  for (std::size_t slot = 0; slot < sausage.num_slots(); ++slot) {
    const auto to = static_cast<StateId>(from + static_cast<StateId>(states_before(slot)));
    for (std::size_t i = 0; i < states_before(slot + 1); ++i) out.AddState();
    const bool joins = states_before(slot + 1) == 1;
    for (std::size_t a = 0; a < states_before(slot); ++a) {
      const auto state = static_cast<StateId>(from + static_cast<StateId>(a));
      out.ReserveArcs(state, sausage.width(slot));
      for (std::size_t i = 0; i < sausage.width(slot); ++i) {
        const Label label = ToLabel(static_cast<Symbol>(sausage.token_ids(slot)[i]));
        auto weight = cost(sausage.scores(slot)[i]);
        if (has_transitions && slot > 0) {
          weight = fst::Times(weight, cost(sausage.transitions(slot)[a * sausage.width(slot) + i]));
        }
        const auto next = static_cast<StateId>(joins ? to : to + static_cast<StateId>(i));
        out.AddArc(state, Arc(label, label, weight, next));
      }
    }
    from = to;
  }
  out.SetFinal(from);
  return out;
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_SAUSAGE_FST_H_
