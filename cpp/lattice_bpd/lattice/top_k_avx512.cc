// The top-k scan with AVX-512 (F, BW, DQ, VL): 16 logits a compare.
#include "lattice_bpd/lattice/top_k_kernels.h"

// clang, which lacks GCC's target pragma, builds this where the whole file is compiled for it.
#if defined(__x86_64__) && (!defined(__clang__) || defined(__AVX512BW__))

#include <immintrin.h>

// From here on only our own code is compiled for AVX-512; what the headers above define stays as
// it is, since the linker may share it with the other builds.
#pragma GCC push_options
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC bug 105593, in immintrin.h
#pragma GCC diagnostic ignored "-Wuninitialized"        // the same, less optimized
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt,lzcnt")

#include "lattice_bpd/lattice/top_k_scan.h"

namespace lattice_bpd {
namespace {

struct Avx512 {
  using Vector = __m512;
  using Mask = __mmask16;
  static constexpr bool kCountsRanks = true;
  typedef float Floats __attribute__((vector_size(64)));
  typedef std::int64_t Keys __attribute__((vector_size(64)));

  template <typename Element>
  static Vector Load(const char* at) {
    return LoadAs(at, Element());
  }
  static Vector Fill(float x) { return _mm512_set1_ps(x); }
  static void Store(Vector v, float* at) { _mm512_storeu_ps(at, v); }
  static Vector Max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static Vector Add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector Subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  // Not _mm512_mul_ps, which compilers fuse with an addition that follows.
  static Vector Multiply(Vector a, Vector b) {
    return _mm512_mul_round_ps(a, b, _MM_FROUND_CUR_DIRECTION);
  }
  static Vector PowerOfTwo(Vector v, Vector* rounded) {
    const __m512i exponent = _mm512_cvtps_epi32(v);
    *rounded = _mm512_cvtepi32_ps(exponent);
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(127)), 23));
  }

  static Mask NotBelow(Vector v, Vector t) { return _mm512_cmp_ps_mask(v, t, _CMP_NLT_UQ); }
  static Mask Above(Vector v, Vector t) { return _mm512_cmp_ps_mask(v, t, _CMP_NLE_UQ); }
  static Mask Or(Mask a, Mask b) { return _kor_mask16(a, b); }
  static bool Any(Mask mask) { return _kortestz_mask16_u8(mask, mask) == 0; }
  static std::uint32_t Bits(Mask mask) { return mask; }

 private:
  static __m256i LoadHalves(const char* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  static Vector LoadAs(const char* at, Float32Element) { return _mm512_loadu_ps(at); }
  static Vector LoadAs(const char* at, Float16Element) { return _mm512_cvtph_ps(LoadHalves(at)); }
  static Vector LoadAs(const char* at, BFloat16Element) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(LoadHalves(at)), 16));
  }
};

std::size_t Scan(const LogitsRow& row, TopKBuffer* buffer) { return ScanRow<Avx512>(row, buffer); }
void Sort(TopKBuffer* buffer) { SortCandidates<Avx512>(buffer); }
double SumExp(const LogitsRow& row, float best) { return SumExpOfRow<Avx512>(row, best); }

}  // namespace
}  // namespace lattice_bpd

#pragma GCC diagnostic pop
#pragma GCC pop_options

namespace lattice_bpd {

TopKKernel TopKAvx512() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("bmi2");
  return has ? TopKKernel{"avx512", &Scan, &Sort, &SumExp}
             : TopKKernel{"avx512", nullptr, nullptr, nullptr};
}

}  // namespace lattice_bpd

#else

namespace lattice_bpd {
TopKKernel TopKAvx512() { return {"avx512", nullptr, nullptr, nullptr}; }
}  // namespace lattice_bpd

#endif
