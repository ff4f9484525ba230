// The fused search with AVX2: 16 two-byte keys a compare, 4 doubles an add.
#include "lattice_bpd/draft/fused_kernels.h"

// clang, which lacks GCC's target pragma, builds this where the whole file is compiled for it.
#if defined(__x86_64__) && (!defined(__clang__) || defined(__AVX2__))

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/fused_workspace.h"
#include "lattice_bpd/lm/packed_level.h"

// As in fused_avx512.cc: headers that other builds share come before the pragma.
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt,lzcnt")

#include "lattice_bpd/draft/fused_scalar.h"
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

// For each set of 4 lanes: the 32-bit halves that put those lanes side by side, and those that
// put the first doubles on those lanes.
struct LaneTables {
  alignas(32) std::int32_t compress[16][8] = {};
  alignas(32) std::int32_t expand[16][8] = {};

  constexpr LaneTables() {
    for (int set = 0; set < 16; ++set) {
      int count = 0;
      for (int lane = 0; lane < 4; ++lane) {
        if ((set >> lane & 1) == 0) continue;
        for (int half = 0; half < 2; ++half) {
          compress[set][2 * count + half] = 2 * lane + half;
          expand[set][2 * lane + half] = 2 * count + half;
        }
        ++count;
      }
    }
  }
};
constexpr LaneTables kLaneTables;

__m256d Permute(__m256d values, const std::int32_t* halves) {
  const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(halves));
  return _mm256_castsi256_pd(_mm256_permutevar8x32_epi32(_mm256_castpd_si256(values), order));
}

// All ones in the lanes of a set.
__m256d LaneMask(std::uint32_t set) {
  const __m256i bits = _mm256_set_epi64x(8, 4, 2, 1);
  const __m256i both = _mm256_and_si256(_mm256_set1_epi64x(static_cast<long long>(set)), bits);
  return _mm256_castsi256_pd(_mm256_cmpeq_epi64(both, bits));
}

struct Avx2 : Scalar {
  static std::uint32_t FindInSmallRun(const PackedLevel& level, FusedRun run,
                                      const FusedQuery& query, const FusedOutput& out) {
    return FindAmong(level, query, out, [&](std::uint32_t) { return run; });
  }

  static std::uint32_t FindInBlocks(const PackedLevel& level, const FusedQuery& query,
                                    const FusedBlock* blocks, const FusedOutput& out) {
    return FindAmong(level, query, out, [&](std::uint32_t lane) { return RunIn(blocks[lane]); });
  }

  static double FillRow(const double* suffix_values, double added, const FusedRowHits& hits,
                        std::uint32_t size, double* values) {
    __m256d best = _mm256_set1_pd(kMinusInfinity);
    const double* scores = hits.scores;
    for (std::uint32_t i = 0; i < size; i += 4) {
      const std::uint32_t set = hits.lane_bits[i / 64] >> (i % 64) & 15;
      const __m256d sum = _mm256_add_pd(_mm256_loadu_pd(suffix_values + i), _mm256_set1_pd(added));
      const __m256d own = Permute(_mm256_loadu_pd(scores), kLaneTables.expand[set]);
      const __m256d value = _mm256_blendv_pd(sum, own, LaneMask(set));
      scores += __builtin_popcount(set);
      _mm256_storeu_pd(values + i, value);
      best = _mm256_max_pd(best, value);
    }
    return LargestOf(best);
  }

  static double FillMasses(const double* suffix_masses, double factor, const FusedRowHits& hits,
                           std::uint32_t size, double* masses) {
    __m256d totals[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    const double* own_masses = hits.scores;
    for (std::uint32_t i = 0; i < size; i += 4) {
      const std::uint32_t set = hits.lane_bits[i / 64] >> (i % 64) & 15;
      const __m256d product =
          _mm256_mul_pd(_mm256_loadu_pd(suffix_masses + i), _mm256_set1_pd(factor));
      const __m256d own = Permute(_mm256_loadu_pd(own_masses), kLaneTables.expand[set]);
      const __m256d mass = _mm256_blendv_pd(product, own, LaneMask(set));
      own_masses += __builtin_popcount(set);
      _mm256_storeu_pd(masses + i, mass);
      totals[i / 4 % 2] = _mm256_add_pd(totals[i / 4 % 2], mass);
    }
    return SumOf(_mm256_add_pd(totals[0], totals[1]));
  }

  static FusedMassTotals FillMassPairs(const double* suffix_masses, double factor,
                                       const FusedRowHits& hits, const double* hit_weighted,
                                       std::uint32_t size, double* masses) {
    const __m256d factors = _mm256_set1_pd(factor);
    __m256d totals[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    __m256d best = _mm256_setzero_pd();
    const double* hit_masses = hits.scores;
    for (std::uint32_t i = 0; i < size; i += 4) {
      const std::uint32_t set = hits.lane_bits[i / 64] >> (i % 64) & 15;
      const std::int32_t* expand = kLaneTables.expand[set];
      const __m256d is_hit = LaneMask(set);
      const __m256d mass =
          _mm256_blendv_pd(_mm256_mul_pd(_mm256_loadu_pd(suffix_masses + i), factors),
                           Permute(_mm256_loadu_pd(hit_masses), expand), is_hit);
      const __m256d weighted =
          _mm256_blendv_pd(_mm256_mul_pd(_mm256_loadu_pd(suffix_masses + size + i), factors),
                           Permute(_mm256_loadu_pd(hit_weighted), expand), is_hit);
      hit_masses += __builtin_popcount(set);
      hit_weighted += __builtin_popcount(set);
      _mm256_storeu_pd(masses + i, mass);
      _mm256_storeu_pd(masses + size + i, weighted);
      totals[i / 4 % 2] = _mm256_add_pd(totals[i / 4 % 2], mass);
      best = _mm256_max_pd(best, weighted);
    }
    return {SumOf(_mm256_add_pd(totals[0], totals[1])), LargestOf(best)};
  }

  static std::uint32_t AtLeast(const double* values, double added, std::uint32_t size, double least,
                               double* sums, std::uint32_t* indices) {
    const __m256d bound = _mm256_set1_pd(least);
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < size; i += 4) {
      const __m256d sum = _mm256_add_pd(_mm256_loadu_pd(values + i), _mm256_set1_pd(added));
      auto set =
          static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_cmp_pd(sum, bound, _CMP_GE_OQ)));
      if (size - i < 4) set &= (1u << (size - i)) - 1;
      _mm256_storeu_pd(sums + count, Permute(sum, kLaneTables.compress[set]));
      for (std::uint32_t k = 0; k < 4; ++k) {
        indices[count] = i + k;
        count += set >> k & 1;
      }
    }
    return count;
  }

  static std::uint32_t CountAbove(const double* values, std::uint32_t size, double bound) {
    const __m256d bounds = _mm256_set1_pd(bound);
    std::uint32_t count = 0;
    std::uint32_t i = 0;
    for (; i + 4 <= size; i += 4) {
      const __m256d above = _mm256_cmp_pd(_mm256_loadu_pd(values + i), bounds, _CMP_GT_OQ);
      count += static_cast<std::uint32_t>(
          __builtin_popcount(static_cast<unsigned>(_mm256_movemask_pd(above))));
    }
    for (; i < size; ++i) count += values[i] > bound;
    return count;
  }

 private:
  static double LargestOf(__m256d values) {
    const __m128d half =
        _mm_max_pd(_mm256_castpd256_pd128(values), _mm256_extractf128_pd(values, 1));
    return std::max(_mm_cvtsd_f64(half), _mm_cvtsd_f64(_mm_unpackhi_pd(half, half)));
  }

  // As `Sum` (fused_exponentials.h) adds up eight, of which four have been added to four.
  static double SumOf(__m256d four) {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
  }

  template <typename RunOf>
  static std::uint32_t FindAmong(const PackedLevel& level, const FusedQuery& query,
                                 const FusedOutput& out, const RunOf& run_of) {
    const std::uint8_t* keys = level.keys.data();
    if (level.form.key_bytes == 4) {
      return FindEach(query, out, [&](std::uint32_t lane, Symbol word, std::uint32_t* node) {
        return FindByHalves(reinterpret_cast<const std::uint32_t*>(keys), run_of(lane), word, node);
      });
    }
    return FindEach(query, out, [&](std::uint32_t lane, Symbol word, std::uint32_t* node) {
      return FindInPart(level, run_of(lane), word, node);
    });
  }

  // Among at most kLargeRun keys: block by block.
  static bool FindInPart(const PackedLevel& level, FusedRun part, Symbol word,
                         std::uint32_t* node) {
    const auto* keys = reinterpret_cast<const std::uint16_t*>(level.keys.data());
    for (std::uint32_t at = part.begin; at < part.end; at += 32) {
      if (at + 32 > level.size()) return FindByHalves(keys, {at, part.end}, word, node);
      const std::uint32_t equal = EqualLanes(keys + at, word);
      if (equal == 0) continue;
      *node = at + static_cast<std::uint32_t>(__builtin_ctz(equal));
      return *node < part.end;
    }
    return false;
  }
};

}  // namespace
}  // namespace lattice_bpd

#pragma GCC pop_options

namespace lattice_bpd {

FusedKernel FusedAvx2() {
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  if (!has) return {"avx2", nullptr, nullptr, nullptr, nullptr};
  return {"avx2", &SearchFused<Avx2>, &SearchFusedTree<Avx2>, &SearchFusedChain<Avx2>,
          &SearchFusedSample<Avx2>};
}

}  // namespace lattice_bpd

#else

namespace lattice_bpd {
FusedKernel FusedAvx2() { return {"avx2", nullptr, nullptr, nullptr, nullptr}; }
}  // namespace lattice_bpd

#endif
