#include "lattice_bpd/lattice/sausage_fst.h"

#include "lattice_bpd/base/openfst.h"

namespace lattice_bpd {

std::string SausageToFstBytes(const Sausage& sausage) {
  const auto out = BuildSausageFst<fst::StdArc>(
      sausage, [](float score) { return fst::TropicalWeight(-score); });
  CheckFst(out, "SausageLattice.to_pywrapfst");
  return FstToBytes(out);
}

}  // namespace lattice_bpd
