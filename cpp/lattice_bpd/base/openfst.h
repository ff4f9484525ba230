// OpenFst inside this process: the arc type that scores use, and errors as exceptions.
//
// OpenFst reports most failures by logging and a kError property, and by default a fatal log ends
// the process. UseOpenFst() (use_openfst.h) turns that off; CheckFst() turns the property into an
// exception. Only the files that CMakeLists.txt lists as fst_sources may include this header.
#ifndef LATTICE_BPD_BASE_OPENFST_H_
#define LATTICE_BPD_BASE_OPENFST_H_

#include <fst/vector-fst.h>

#include <sstream>
#include <string>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {

// Tropical weights in double: sums of grid scores (score_grid.h) are exact.
using ScoreWeight = fst::TropicalWeightTpl<double>;
using ScoreArc = fst::ArcTpl<ScoreWeight>;
using ScoreVectorFst = fst::VectorFst<ScoreArc>;

// Throws ValueError where the last operation on `fst` failed.
template <typename Arc>
void CheckFst(const fst::Fst<Arc>& fst, const char* where) {
  if (fst.Properties(fst::kError, false) != 0) {
    throw ValueError(StrCat(where,
                            ": OpenFst refused the operation (its message is on stderr); "
                            "please report this with the arguments that led to it"));
  }
}

// The FST in OpenFst's own binary format, as pywrapfst's Fst.read_from_string takes it.
template <typename Arc>
std::string FstToBytes(const fst::Fst<Arc>& fst) {
  std::ostringstream stream;
  fst::FstWriteOptions options("bytes");
  if (!fst.Write(stream, options)) throw ValueError("FstToBytes: OpenFst could not write the FST");
  return stream.str();
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_OPENFST_H_
