// The attention of attention.h with AVX-512 (F, BW, DQ, VL): 16 floats.
#include "lattice_bpd/base/half.h"
#include "lattice_bpd/verify/attention_task.h"

// clang, which lacks GCC's target pragma, builds this where the whole file is compiled for it.
#if defined(__x86_64__) && (!defined(__clang__) || defined(__AVX512BW__))

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

// Headers that other builds share come before the pragma.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")

namespace {
constexpr int kLanes = 16;
}

#include "lattice_bpd/verify/attention_kernel.h"
#include "lattice_bpd/verify/product_kernel.h"

#pragma GCC pop_options

namespace lattice_bpd {
AttentionKernel AttentionAvx512() {
  return {"avx512",
          [] {
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
          },
          &AttendBlock, &MultiplyFloats, &Multiply<std::int8_t>};
}
}  // namespace lattice_bpd

#else

namespace lattice_bpd {
AttentionKernel AttentionAvx512() {
  return {"avx512", [] { return false; }, nullptr, nullptr, nullptr};
}
}  // namespace lattice_bpd

#endif
