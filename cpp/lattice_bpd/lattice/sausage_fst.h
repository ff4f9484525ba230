// The sausage as an FST acceptor of any arc type.
#ifndef LATTICE_BPD_LATTICE_SAUSAGE_FST_H_
#define LATTICE_BPD_LATTICE_SAUSAGE_FST_H_

#include <fst/vector-fst.h>

#include "lattice_bpd/lattice/sausage.h"

namespace lattice_bpd {

// States 0 .. num_slots in a row, the last one final; `cost` turns a head score into a weight.
// Arcs leave a state in the order of the slot: by decreasing score. No states without slots: such a
// lattice has no path, not an empty one.
template <typename Arc, typename Cost>
fst::VectorFst<Arc> BuildSausageFst(const Sausage& sausage, const Cost& cost) {
  fst::VectorFst<Arc> out;
  if (sausage.num_slots() == 0) return out;
  out.ReserveStates(sausage.num_slots() + 1);
  for (std::size_t state = 0; state <= sausage.num_slots(); ++state) out.AddState();
  out.SetStart(0);
  out.SetFinal(static_cast<typename Arc::StateId>(sausage.num_slots()));
  for (std::size_t slot = 0; slot < sausage.num_slots(); ++slot) {
    const auto from = static_cast<typename Arc::StateId>(slot);
    out.ReserveArcs(from, sausage.width(slot));
    for (std::size_t i = 0; i < sausage.width(slot); ++i) {
      const Label label = ToLabel(static_cast<Symbol>(sausage.token_ids(slot)[i]));
      out.AddArc(from, Arc(label, label, cost(sausage.scores(slot)[i]), from + 1));
    }
  }
  return out;
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_SAUSAGE_FST_H_
