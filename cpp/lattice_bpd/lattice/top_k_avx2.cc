// The top-k scan with AVX2 and F16C: 8 logits a compare.
#include "lattice_bpd/base/instruction_sets.h"
#include "lattice_bpd/lattice/top_k_kernels.h"

// clang, which lacks GCC's target pragma, builds this where the whole file is compiled for it.
#if defined(__x86_64__) && (!defined(__clang__) || (defined(__AVX2__) && defined(__F16C__)))

#include <immintrin.h>

// As in top_k_avx512.cc: headers that other builds share come before the pragma.
#pragma GCC push_options
#pragma GCC target("avx2,f16c,bmi,bmi2,popcnt,lzcnt")

#include "lattice_bpd/lattice/top_k_scan.h"

namespace lattice_bpd {
namespace {

struct Avx2 {
  struct Vector {
    __m256 low, high;
  };
  using Mask = Vector;
  static constexpr bool kCountsRanks = true;
  typedef float Floats __attribute__((vector_size(32)));
  typedef std::int64_t Keys __attribute__((vector_size(32)));

  template <typename Element>
  static Vector Load(const char* at) {
    return {LoadAs(at, Element()), LoadAs(at + 8 * Element::kBytes, Element())};
  }
  static Vector Fill(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static void Store(Vector v, float* at) {
    _mm256_storeu_ps(at, v.low);
    _mm256_storeu_ps(at + 8, v.high);
  }
  static Vector Max(Vector a, Vector b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
  }
  static Vector Add(Vector a, Vector b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Vector Subtract(Vector a, Vector b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  static Vector Multiply(Vector a, Vector b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static Vector PowerOfTwo(Vector v, Vector* rounded) {
    return {PowerOfTwo(v.low, &rounded->low), PowerOfTwo(v.high, &rounded->high)};
  }

  static Mask NotBelow(Vector v, Vector t) {
    return {_mm256_cmp_ps(v.low, t.low, _CMP_NLT_UQ), _mm256_cmp_ps(v.high, t.high, _CMP_NLT_UQ)};
  }
  static Mask Above(Vector v, Vector t) {
    return {_mm256_cmp_ps(v.low, t.low, _CMP_NLE_UQ), _mm256_cmp_ps(v.high, t.high, _CMP_NLE_UQ)};
  }
  static Mask Or(Mask a, Mask b) {
    return {_mm256_or_ps(a.low, b.low), _mm256_or_ps(a.high, b.high)};
  }
  static bool Any(Mask mask) { return _mm256_movemask_ps(_mm256_or_ps(mask.low, mask.high)) != 0; }
  static std::uint32_t Bits(Mask mask) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(mask.low)) |
           static_cast<std::uint32_t>(_mm256_movemask_ps(mask.high)) << 8;
  }

 private:
  static __m128i LoadHalves(const char* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  static __m256 LoadAs(const char* at, Float32Element) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(at));
  }
  static __m256 LoadAs(const char* at, Float16Element) { return _mm256_cvtph_ps(LoadHalves(at)); }
  static __m256 LoadAs(const char* at, BFloat16Element) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(LoadHalves(at)), 16));
  }
  static __m256 PowerOfTwo(__m256 v, __m256* rounded) {
    const __m256i exponent = _mm256_cvtps_epi32(v);
    *rounded = _mm256_cvtepi32_ps(exponent);
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
  }
};

std::size_t Scan(const LogitsRow& row, TopKBuffer* buffer) { return ScanRow<Avx2>(row, buffer); }
void Sort(TopKBuffer* buffer) { SortCandidates<Avx2>(buffer); }
double SumExp(const LogitsRow& row, float best) { return SumExpOfRow<Avx2>(row, best); }

}  // namespace
}  // namespace lattice_bpd

#pragma GCC pop_options

namespace lattice_bpd {

TopKKernel TopKAvx2() {
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && HasF16c();
  return has ? TopKKernel{"avx2", &Scan, &Sort, &SumExp}
             : TopKKernel{"avx2", nullptr, nullptr, nullptr};
}

}  // namespace lattice_bpd

#else

namespace lattice_bpd {
TopKKernel TopKAvx2() { return {"avx2", nullptr, nullptr, nullptr}; }
}  // namespace lattice_bpd

#endif
