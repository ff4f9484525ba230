// The fused search with AVX2: 16 two-byte keys a compare, 4 doubles an add.
#include "lattice_bpd/draft/fused_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/fused_workspace.h"

// As in fused_avx512.cc: headers that other builds share come before the pragma.
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt,lzcnt")

#include "lattice_bpd/draft/fused_search.h"

namespace lattice_bpd {
namespace {

// 32 two-byte keys against one, as bits.
std::uint32_t EqualLanes(const std::uint16_t* at, Symbol word) {
  const __m256i wanted = _mm256_set1_epi16(static_cast<short>(word));
  const auto* vectors = reinterpret_cast<const __m256i*>(at);
  const __m256i low = _mm256_cmpeq_epi16(_mm256_loadu_si256(vectors), wanted);
  const __m256i high = _mm256_cmpeq_epi16(_mm256_loadu_si256(vectors + 1), wanted);
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(bytes));
}

struct Avx2 {
  static void Prefetch(const void* at) { __builtin_prefetch(at); }

  static std::uint32_t FindHits(const PackedLevel& level, FusedRun run, const FusedQuery& query,
                                const FusedOutput& out) {
    if (run.begin == run.end) return 0;
    const bool narrow = level.form.key_bytes == 2;
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < query.num_hits; ++i) {
      const std::uint32_t lane = query.lanes[i];
      const Symbol word = query.symbols[lane];
      const std::uint32_t node =
          narrow ? Find(level, run.begin, run.end, word) : level.Find(run.begin, run.end, word);
      out.lane[count] = lane;
      out.node[count] = node;
      out.suffix_hit[count] = query.first_hit + i;
      count += node != kNoNode;
    }
    MarkHits(level, out, count);
    return count;
  }

  static double AddConstant(const double* in, double constant, const std::uint64_t* skipped_lanes,
                            std::uint32_t size, double* out) {
    const __m256d added = _mm256_set1_pd(constant);
    const __m256i bits = _mm256_set_epi64x(8, 4, 2, 1);
    const __m256d minus_infinity = _mm256_set1_pd(kMinusInfinity);
    __m256d best = minus_infinity;
    for (std::uint32_t i = 0; i < size; i += 4) {
      const __m256d sum = _mm256_add_pd(_mm256_loadu_pd(in + i), added);
      _mm256_storeu_pd(out + i, sum);
      const __m256i nibble =
          _mm256_set1_epi64x(static_cast<long long>(skipped_lanes[i / 64] >> (i % 64)));
      const __m256i skipped = _mm256_cmpeq_epi64(_mm256_and_si256(nibble, bits), bits);
      best =
          _mm256_max_pd(best, _mm256_blendv_pd(sum, minus_infinity, _mm256_castsi256_pd(skipped)));
    }
    const __m128d half = _mm_max_pd(_mm256_castpd256_pd128(best), _mm256_extractf128_pd(best, 1));
    return std::max(_mm_cvtsd_f64(half), _mm_cvtsd_f64(_mm_unpackhi_pd(half, half)));
  }

  template <typename Visit>
  static void ForEachAtLeast(const double* values, std::uint32_t size, double least,
                             const Visit& visit) {
    const __m256d bound = _mm256_set1_pd(least);
    for (std::uint32_t i = 0; i < size; i += 4) {
      auto lanes = static_cast<std::uint32_t>(
          _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(values + i), bound, _CMP_GE_OQ)));
      if (size - i < 4) lanes &= (1u << (size - i)) - 1;
      for (; lanes != 0; lanes &= lanes - 1) {
        visit(i + static_cast<std::uint32_t>(__builtin_ctz(lanes)));
      }
    }
  }

 private:
  static std::uint32_t Find(const PackedLevel& level, std::uint32_t begin, std::uint32_t end,
                            Symbol word) {
    const auto* keys = reinterpret_cast<const std::uint16_t*>(level.keys.data());
    std::uint32_t block = begin / kSampleStride;
    std::uint32_t last_block = (end - 1) / kSampleStride;
    if (last_block - block > 1) {
      const auto* samples = reinterpret_cast<const std::uint16_t*>(level.samples.data());
      const auto* first_above = UpperBound(samples + block + 1, samples + last_block + 1, word);
      block = static_cast<std::uint32_t>(first_above - samples) - 1;
      last_block = block;
    }
    for (; block <= last_block; ++block) {
      const std::uint32_t base = block * kSampleStride;
      const std::uint32_t first = std::max(begin, base);
      if (base + kSampleStride > level.size()) {  // the level's last, partial block
        return level.Find(first, end, word);
      }
      const std::uint32_t equal = EqualLanes(keys + base, word) & (~0u << (first - base));
      if (equal == 0) continue;
      const std::uint32_t node = base + static_cast<std::uint32_t>(__builtin_ctz(equal));
      return node < end ? node : kNoNode;
    }
    return kNoNode;
  }

  // A branch-free binary search for the first sample above `word`.
  static const std::uint16_t* UpperBound(const std::uint16_t* first, const std::uint16_t* last,
                                         Symbol word) {
    auto size = static_cast<std::size_t>(last - first);
    while (size > 0) {
      const std::size_t half = size / 2;
      const bool right = first[half] <= word;
      first = right ? first + half + 1 : first;
      size = right ? size - half - 1 : half;
    }
    return first;
  }
};

void Run(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
         const DraftOptions& options, FusedWorkspace* workspace, DraftList* out) {
  FusedSearch<Avx2>(sausage, lm, start, options, workspace).Run(out);
}

}  // namespace
}  // namespace lattice_bpd

#pragma GCC pop_options

namespace lattice_bpd {

RunFused FusedAvx2() {
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  return has ? &Run : nullptr;
}

}  // namespace lattice_bpd

#else

namespace lattice_bpd {
RunFused FusedAvx2() { return nullptr; }
}  // namespace lattice_bpd

#endif
