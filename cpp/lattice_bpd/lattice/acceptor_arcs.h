// The states and arcs of any acceptor as arrays, for constraints.
#ifndef LATTICE_BPD_LATTICE_ACCEPTOR_ARCS_H_
#define LATTICE_BPD_LATTICE_ACCEPTOR_ARCS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

// The arcs of state s are elements offsets[s] .. offsets[s + 1] - 1 of labels and next_states.
struct AcceptorArcs {
  std::int32_t start = -1;             // -1 without states
  std::vector<std::uint8_t> is_final;  // for each state: a final weight below infinity
  std::vector<std::int64_t> offsets;   // (states + 1,)
  std::vector<std::int32_t> labels;    // token id + 1; 0 is epsilon
  std::vector<std::int32_t> next_states;
};

// Reads the bytes of an OpenFst VectorFst over standard arcs; cycles, epsilons and ambiguity are
// allowed. Arcs of infinite weight are left out, other weights are dropped.
//
// Throws ValueError for bytes that are not such an FST and for different input and output labels.
AcceptorArcs ReadAcceptorArcs(const std::string& bytes);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_ACCEPTOR_ARCS_H_
