#include "lattice_bpd/base/use_openfst.h"

#include <fst/util.h>

namespace lattice_bpd {

void UseOpenFst() { FLAGS_fst_error_fatal = false; }

}  // namespace lattice_bpd
