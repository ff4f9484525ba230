#include "lattice_bpd/lattice/fst_arrays.h"

#include "lattice_bpd/base/fst_bytes.h"

namespace lattice_bpd {

FstArrays ReadFstArrays(const std::string& bytes) {
  if (!FstKindOf(bytes)) throw FormatError("is no OpenFst file of type vector or const");
  FstArrays out;
  const fst::VectorFst<fst::StdArc> from = ReadStdFst(bytes, &out.names);
  out.start = from.Start();
  for (int state = 0; state < from.NumStates(); ++state) {
    out.final_weights.push_back(from.Final(state).Value());
    for (fst::ArcIterator<fst::VectorFst<fst::StdArc>> arcs(from, state); !arcs.Done();
         arcs.Next()) {
      const fst::StdArc& arc = arcs.Value();
      out.sources.push_back(state);
      out.targets.push_back(arc.nextstate);
      out.input_labels.push_back(arc.ilabel);
      out.output_labels.push_back(arc.olabel);
      out.weights.push_back(arc.weight.Value());
    }
  }
  return out;
}

}  // namespace lattice_bpd
