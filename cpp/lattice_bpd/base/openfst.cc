#include "lattice_bpd/base/openfst.h"

#include <fst/const-fst.h>
#include <fst/register.h>
#include <fst/util.h>

namespace fst {
REGISTER_FST(VectorFst, StdArc);
REGISTER_FST(ConstFst, StdArc);
}  // namespace fst

namespace lattice_bpd {

void UseOpenFst() { FLAGS_fst_error_fatal = false; }

}  // namespace lattice_bpd
