// Determinization of acyclic acceptors, exact on the score grid.
//
// OpenFst's own RmEpsilon and Determinize round residual costs (to 2^-10 unless told otherwise) and
// give up exactness with it; on the grid plain sums and differences have none to lose.
#ifndef LATTICE_BPD_LATTICE_DETERMINIZE_H_
#define LATTICE_BPD_LATTICE_DETERMINIZE_H_

#include "lattice_bpd/base/openfst.h"

namespace lattice_bpd {

// No epsilon, and no label twice at a state.
bool IsDeterministic(const ScoreVectorFst& acceptor);

// An equivalent acceptor with one path for each label sequence, at the cost of its best path, and
// without epsilons. Takes a connected acceptor in topological order; its result is connected.
// Throws ValueError where it would have more than 2^20 states.
// Method: Mohri 1997, "Finite-state transducers in language and speech processing", section 3.3,
// with epsilon closures taken as states are met.
ScoreVectorFst Determinize(const ScoreVectorFst& acceptor);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_DETERMINIZE_H_
