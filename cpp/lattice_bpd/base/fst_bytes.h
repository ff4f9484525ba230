// Reads OpenFst's binary format with checks. OpenFst itself allocates memory and follows offsets as
// the file states.
#ifndef LATTICE_BPD_BASE_FST_BYTES_H_
#define LATTICE_BPD_BASE_FST_BYTES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lattice_bpd/base/openfst.h"

namespace lattice_bpd {

// What an FST file says that it is, such as "vector" and "standard".
struct FstKind {
  std::string fst_type;
  std::string arc_type;
};

// Nothing where the bytes do not begin like an FST.
std::optional<FstKind> FstKindOf(const std::string& bytes);

// A symbol table: labels with their names.
using SymbolNames = std::vector<std::pair<std::int64_t, std::string>>;

// An FST of type "vector" or "const" over arcs of type "standard", without symbol tables; `names`
// gets the one of output labels, else of input labels, if the bytes have one. Start state and next
// states exist; labels and weights are not checked. Memory: a small multiple of the bytes'. Throws
// FormatError for FSTs of other kinds and bytes that are cut or altered; its message continues
// "the FST ".
fst::VectorFst<fst::StdArc> ReadStdFst(const std::string& bytes, SymbolNames* names = nullptr);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_FST_BYTES_H_
