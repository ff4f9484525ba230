// The attention of attention.h with what every processor of the build has: 4 floats.
#include "lattice_bpd/base/half.h"
#include "lattice_bpd/verify/attention_task.h"

namespace {
constexpr int kLanes = 4;
}

#include "lattice_bpd/verify/attention_kernel.h"
#include "lattice_bpd/verify/product_kernel.h"

namespace lattice_bpd {
AttentionKernel AttentionPlain() {
  return {"plain", [] { return true; }, &AttendBlock, &MultiplyFloats, &Multiply<std::int8_t>};
}
}  // namespace lattice_bpd
