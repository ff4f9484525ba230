#include "lattice_bpd/base/openfst.h"

#include <fst/const-fst.h>
#include <fst/register.h>
#include <fst/util.h>

#ifdef FST_FLAGS_fst_error_fatal  // OpenFst 1.8 renames its flags
#error "define LATTICE_BPD_ERROR_FATAL for this OpenFst"
#endif

namespace fst {
REGISTER_FST(VectorFst, StdArc);
REGISTER_FST(ConstFst, StdArc);
}  // namespace fst

namespace lattice_bpd {

void UseOpenFst() { FLAGS_fst_error_fatal = false; }

}  // namespace lattice_bpd
