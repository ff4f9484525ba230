// The fused search in plain C++: runs everywhere.
#include "lattice_bpd/draft/fused_scalar.h"

#include "lattice_bpd/draft/fused_kernels.h"
#include "lattice_bpd/draft/fused_search.h"

namespace lattice_bpd {

FusedKernel FusedScalar() {
  return {"scalar", &SearchFused<Scalar>, &SearchFusedTree<Scalar>, &SearchFusedChain<Scalar>,
          &SearchFusedSample<Scalar>};
}

}  // namespace lattice_bpd
