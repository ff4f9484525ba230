// The attention of attention.h with AVX2, FMA and F16C: 8 floats.
#include "lattice_bpd/base/half.h"
#include "lattice_bpd/base/instruction_sets.h"
#include "lattice_bpd/verify/attention_task.h"

// clang, which lacks GCC's target pragma, builds this where the whole file is compiled for it.
#if defined(__x86_64__) && (!defined(__clang__) || (defined(__AVX2__) && defined(__F16C__)))

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

// Headers that other builds share come before the pragma.
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace {
constexpr int kLanes = 8;
}

#include "lattice_bpd/verify/attention_kernel.h"
#include "lattice_bpd/verify/product_kernel.h"

#pragma GCC pop_options

namespace lattice_bpd {
AttentionKernel AttentionAvx2() {
  return {
      "avx2",
      [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c(); },
      &AttendBlock, &MultiplyFloats, &Multiply<std::int8_t>};
}
}  // namespace lattice_bpd

#else

namespace lattice_bpd {
AttentionKernel AttentionAvx2() {
  return {"avx2", [] { return false; }, nullptr, nullptr, nullptr};
}
}  // namespace lattice_bpd

#endif
