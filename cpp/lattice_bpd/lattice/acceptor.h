// Any acyclic weighted acceptor as a lattice: a sausage that a grammar or a lexicon was intersected
// with, say. It comes as bytes of an OpenFst VectorFst over standard (tropical) arcs, with labels
// token_id + 1 and weights that are costs.
#ifndef LATTICE_BPD_LATTICE_ACCEPTOR_H_
#define LATTICE_BPD_LATTICE_ACCEPTOR_H_

#include <optional>
#include <string>

#include "lattice_bpd/base/openfst.h"
#include "lattice_bpd/lattice/sausage.h"

namespace lattice_bpd {

// Reads an acceptor and makes it deterministic: no epsilons, one path for each token sequence, at
// the cost of that sequence's best path; no state off every path, states in topological order.
// Costs are on the score grid. No states at all where there is no path of finite cost.
//
// Throws ValueError for bytes that are not such an FST, output labels that differ, NaN or infinite
// scores, cycles, paths of more than kMaxSlots tokens, or one so ambiguous that it would need more
// than 2^20 states.
// Cost: O(arcs log arcs) where it is deterministic already; else exponential at worst.
ScoreVectorFst ReadAcceptor(const std::string& bytes);

// A sausage and what its last state costs on top.
struct SausageAcceptor {
  Sausage sausage;
  double final_cost = 0.0;
};

// What ReadAcceptor returned as a sausage, if it is one: every state's arcs lead to the next state,
// and only the last one is final.
std::optional<SausageAcceptor> AsSausage(const ScoreVectorFst& acceptor);

// The largest token id on an arc; -1 without arcs.
TokenId MaxTokenId(const ScoreVectorFst& acceptor);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_ACCEPTOR_H_
