// The fused search with AVX-512 (F, BW, DQ, VL): 32 two-byte keys a compare, 8 doubles an add.
#include "lattice_bpd/draft/fused_kernels.h"

// clang, which lacks GCC's target pragma, builds this where the whole file is compiled for it.
#if defined(__x86_64__) && (!defined(__clang__) || defined(__AVX512BW__))

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/fused_workspace.h"
#include "lattice_bpd/lm/packed_level.h"

// From here on only our own code is compiled for AVX-512; what the headers above define stays as
// it is, since the linker may share it with the other builds.
#pragma GCC push_options
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC bug 105593, in immintrin.h
#pragma GCC diagnostic ignored "-Wuninitialized"        // the same, less optimised
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt,lzcnt")

#include "lattice_bpd/draft/fused_scalar.h"
#include "lattice_bpd/draft/fused_search.h"

namespace lattice_bpd {
namespace {

// 32 keys from `at` on: those lanes only, others are not even read.
struct Keys16 {
  using Key = std::uint16_t;
  __m512i keys;
  std::uint32_t lanes;

  Keys16(const Key* at, std::uint32_t which)
      : keys(_mm512_maskz_loadu_epi16(which, at)), lanes(which) {}
  std::uint32_t Equal(Symbol word) const {
    return _mm512_mask_cmpeq_epu16_mask(lanes, keys, _mm512_set1_epi16(static_cast<short>(word)));
  }
};

struct Keys32 {
  using Key = std::uint32_t;
  __m512i low, high;
  std::uint32_t lanes;

  Keys32(const Key* at, std::uint32_t which)
      : low(_mm512_maskz_loadu_epi32(static_cast<__mmask16>(which), at)),
        high(_mm512_maskz_loadu_epi32(static_cast<__mmask16>(which >> 16), at + 16)),
        lanes(which) {}
  std::uint32_t Equal(Symbol word) const {
    const __m512i wanted = _mm512_set1_epi32(static_cast<int>(word));
    return lanes & (_mm512_cmpeq_epu32_mask(low, wanted) |
                    static_cast<std::uint32_t>(_mm512_cmpeq_epu32_mask(high, wanted)) << 16);
  }
};

// A run of 16 two-byte keys or fewer and 16 lanes or fewer, the usual case: all keys at once
// through the slot's table, and those that match put side by side. Keys rise and lanes rise with
// their symbols, so hits come by lane. No branch depends on the data.
std::uint32_t FindInTinyRun(const std::uint16_t* keys, FusedRun run, const FusedQuery& query,
                            const FusedOutput& out) {
  const FusedSymbolTable& table = *query.slot.table;
  const auto which = static_cast<__mmask16>(LaneRange(0, run.end - run.begin));
  const __m256i words = _mm256_maskz_loadu_epi16(which, keys + run.begin);
  const __m256i product =
      _mm256_mullo_epi16(words, _mm256_set1_epi16(static_cast<short>(table.factor)));
  const __m512i entry = _mm512_castsi256_si512(_mm256_srli_epi16(product, 10));
  const __m256i symbols = _mm512_castsi512_si256(_mm512_permutex2var_epi16(
      _mm512_load_si512(table.symbols), entry, _mm512_load_si512(table.symbols + 32)));
  const __m512i lanes = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(_mm512_permutex2var_epi16(
      _mm512_load_si512(table.lanes), entry, _mm512_load_si512(table.lanes + 32))));
  // Only lanes that the suffix has; a sound model has no others.
  const __m512i bits = _mm512_sllv_epi32(_mm512_set1_epi32(1), lanes);
  const auto queried = static_cast<std::uint32_t>(*query.lane_bits);
  const __mmask16 hits =
      _mm512_mask_test_epi32_mask(_mm256_mask_cmpeq_epi16_mask(which, words, symbols), bits,
                                  _mm512_set1_epi32(static_cast<int>(queried)));
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i ranks = _mm512_maskz_expand_epi32(static_cast<__mmask16>(queried), iota);
  const __m512i node = _mm512_add_epi32(iota, _mm512_set1_epi32(static_cast<int>(run.begin)));
  const __m512i suffix_hit = _mm512_add_epi32(_mm512_permutexvar_epi32(lanes, ranks),
                                              _mm512_set1_epi32(static_cast<int>(query.first_hit)));
  _mm512_storeu_si512(out.lane, _mm512_maskz_compress_epi32(hits, lanes));
  _mm512_storeu_si512(out.node, _mm512_maskz_compress_epi32(hits, node));
  _mm512_storeu_si512(out.suffix_hit, _mm512_maskz_compress_epi32(hits, suffix_hit));
  *out.lane_bits = static_cast<std::uint32_t>(_mm512_mask_reduce_or_epi32(hits, bits));
  return static_cast<std::uint32_t>(__builtin_popcount(hits));
}

// A run of 64 keys or fewer: load them once, compare each candidate.
template <typename Keys>
std::uint32_t FindInShortRun(const typename Keys::Key* keys, FusedRun run, const FusedQuery& query,
                             const FusedOutput& out) {
  const std::uint32_t size = run.end - run.begin;
  const Keys low(keys + run.begin, LaneRange(0, size));
  if (size <= 32) {
    return FindEach(query, out, [&](std::uint32_t, Symbol word, std::uint32_t* node) {
      const std::uint32_t equal = low.Equal(word);
      *node = run.begin + _tzcnt_u32(equal);
      return equal != 0;
    });
  }
  const Keys high(keys + run.begin + 32, LaneRange(0, size - 32));
  return FindEach(query, out, [&](std::uint32_t, Symbol word, std::uint32_t* node) {
    const std::uint64_t equal = low.Equal(word) | std::uint64_t{high.Equal(word)} << 32;
    *node = run.begin + static_cast<std::uint32_t>(_tzcnt_u64(equal));
    return equal != 0;
  });
}

// How many of the sorted samples are at most each of 32 words, 63 samples a turn: a search by
// halves of all words side by side, in registers.
__m512i CountAtMost(const std::uint16_t* samples, std::uint32_t size, __m512i words) {
  const __m512i none = _mm512_set1_epi16(-1);
  __m512i total = _mm512_setzero_si512();
  for (std::uint32_t at = 0; at < size; at += 63) {
    const std::uint32_t left = std::min(size - at, 63u);
    const __m512i low = _mm512_mask_loadu_epi16(none, LaneRange(0, left), samples + at);
    const __m512i high =
        _mm512_mask_loadu_epi16(none, left > 32 ? LaneRange(0, left - 32) : 0, samples + at + 32);
    __m512i count = _mm512_setzero_si512();
    for (int half = 32; half > 0; half /= 2) {
      const __m512i middle =
          _mm512_add_epi16(count, _mm512_set1_epi16(static_cast<short>(half - 1)));
      const __mmask32 right =
          _mm512_cmple_epu16_mask(_mm512_permutex2var_epi16(low, middle, high), words);
      count =
          _mm512_mask_add_epi16(count, right, count, _mm512_set1_epi16(static_cast<short>(half)));
    }
    total = _mm512_add_epi16(total, count);
  }
  return total;
}

// Of 16 lanes: the blocks that those counts of samples lead to.
void StoreBlocks(FusedRun run, __m256i counts, __mmask16 lanes, FusedBlock* blocks) {
  const __m512i first = _mm512_set1_epi32(static_cast<int>(run.begin / kSampleStride));
  const __m512i block = _mm512_add_epi32(_mm512_cvtepu16_epi32(counts), first);
  const __m512i base = _mm512_slli_epi32(block, 5);
  static_assert(kSampleStride == 32);
  const __m512i begin = _mm512_set1_epi32(static_cast<int>(run.begin));
  const __m512i end = _mm512_set1_epi32(static_cast<int>(run.end));
  const __m512i low = _mm512_sub_epi32(_mm512_max_epu32(base, begin), base);
  const __m512i high = _mm512_sub_epi32(end, base);  // shifts by 32 or more give 0
  const __m512i ones = _mm512_set1_epi32(-1);
  const __m512i keys =
      _mm512_andnot_si512(_mm512_sllv_epi32(ones, high), _mm512_sllv_epi32(ones, low));
  const __m512i even = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(8));
  _mm512_mask_storeu_epi64(blocks, static_cast<__mmask8>(lanes),
                           _mm512_permutex2var_epi32(base, even, keys));
  _mm512_mask_storeu_epi64(blocks + 8, static_cast<__mmask8>(lanes >> 8),
                           _mm512_permutex2var_epi32(base, odd, keys));
}

// The blocks of all lanes, wanted or not.
void FindBlocks16(const PackedLevel& level, FusedRun run, const FusedQuery& query,
                  FusedBlock* blocks) {
  const auto* samples = reinterpret_cast<const std::uint16_t*>(level.samples.data());
  const std::uint32_t first = run.begin / kSampleStride;
  const std::uint32_t size = (run.end - 1) / kSampleStride - first;
  for (std::uint32_t lane = 0; lane < query.slot.num_lanes; lane += 32) {
    const __mmask32 lanes = LaneRange(0, query.slot.num_lanes - lane);
    const __m512i words = _mm512_maskz_loadu_epi16(lanes, query.slot.symbols16 + lane);
    const __m512i counts = CountAtMost(samples + first + 1, size, words);
    StoreBlocks(run, _mm512_castsi512_si256(counts), static_cast<__mmask16>(lanes), blocks + lane);
    if (lanes >> 16 == 0) break;
    StoreBlocks(run, _mm512_extracti64x4_epi64(counts, 1), static_cast<__mmask16>(lanes >> 16),
                blocks + lane + 16);
  }
  const auto* keys = reinterpret_cast<const std::uint16_t*>(level.keys.data());
  for (std::uint32_t word = 0; 64 * word < query.slot.num_lanes; ++word) {
    for (std::uint64_t bits = query.lane_bits[word]; bits != 0; bits &= bits - 1) {
      __builtin_prefetch(keys + blocks[64 * word + _tzcnt_u64(bits)].base);
    }
  }
}

template <typename Keys>
std::uint32_t FindInEachBlock(const PackedLevel& level, const FusedQuery& query,
                              const FusedBlock* blocks, const FusedOutput& out) {
  const auto* keys = reinterpret_cast<const typename Keys::Key*>(level.keys.data());
  return FindEach(query, out, [&](std::uint32_t lane, Symbol word, std::uint32_t* node) {
    const FusedBlock block = blocks[lane];
    const std::uint32_t equal = Keys(keys + block.base, block.keys).Equal(word);
    *node = block.base + _tzcnt_u32(equal);
    return equal != 0;
  });
}

struct Avx512 : Scalar {
  static constexpr bool kUsesTables = true;
  static std::uint32_t TinyRun(const PackedLevel& level, const FusedSymbolTable& table) {
    return level.form.key_bytes == 2 && table.factor != 0 ? 16 : 0;
  }
  static std::uint32_t FindInTinyRun(const PackedLevel& level, FusedRun run,
                                     const FusedQuery& query, const FusedOutput& out) {
    return lattice_bpd::FindInTinyRun(reinterpret_cast<const std::uint16_t*>(level.keys.data()),
                                      run, query, out);
  }

  static std::uint32_t FindInSmallRun(const PackedLevel& level, FusedRun run,
                                      const FusedQuery& query, const FusedOutput& out) {
    const std::uint8_t* keys = level.keys.data();
    return level.form.key_bytes == 2
               ? FindInShortRun<Keys16>(reinterpret_cast<const std::uint16_t*>(keys), run, query,
                                        out)
               : FindInShortRun<Keys32>(reinterpret_cast<const std::uint32_t*>(keys), run, query,
                                        out);
  }

  static void FindBlocks(const PackedLevel& level, FusedRun run, const FusedQuery& query,
                         FusedBlock* blocks) {
    if (level.form.key_bytes == 2) {
      FindBlocks16(level, run, query, blocks);
    } else {
      FindBlocksByHalves<std::uint32_t>(level, run, query, blocks);
    }
  }
  static std::uint32_t FindInBlocks(const PackedLevel& level, const FusedQuery& query,
                                    const FusedBlock* blocks, const FusedOutput& out) {
    return level.form.key_bytes == 2 ? FindInEachBlock<Keys16>(level, query, blocks, out)
                                     : FindInEachBlock<Keys32>(level, query, blocks, out);
  }

  static double FillRow(const double* suffix_values, double added, const FusedRowHits& hits,
                        std::uint32_t size, double* values) {
    const __m512d constant = _mm512_set1_pd(added);
    __m512d best = _mm512_set1_pd(kMinusInfinity);
    const double* scores = hits.scores;
    for (std::uint32_t i = 0; i < size; i += 8) {
      const auto lanes = static_cast<__mmask8>(hits.lane_bits[i / 64] >> (i % 64));
      const __m512d sum = _mm512_add_pd(_mm512_loadu_pd(suffix_values + i), constant);
      const __m512d value = _mm512_mask_expandloadu_pd(sum, lanes, scores);
      scores += __builtin_popcount(lanes);
      _mm512_storeu_pd(values + i, value);
      best = _mm512_max_pd(best, value);
    }
    return _mm512_reduce_max_pd(best);
  }

  static double FillMasses(const double* suffix_masses, double factor, const FusedRowHits& hits,
                           std::uint32_t size, double* masses) {
    const __m512d factors = _mm512_set1_pd(factor);
    __m512d total = _mm512_setzero_pd();
    const double* own_masses = hits.scores;
    for (std::uint32_t i = 0; i < size; i += 8) {
      const auto lanes = static_cast<__mmask8>(hits.lane_bits[i / 64] >> (i % 64));
      const __m512d product = _mm512_mul_pd(_mm512_loadu_pd(suffix_masses + i), factors);
      const __m512d mass = _mm512_mask_expandloadu_pd(product, lanes, own_masses);
      own_masses += __builtin_popcount(lanes);
      _mm512_storeu_pd(masses + i, mass);
      total = _mm512_add_pd(total, mass);
    }
    const __m256d four =
        _mm256_add_pd(_mm512_castpd512_pd256(total), _mm512_extractf64x4_pd(total, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
  }

  static std::uint32_t AtLeast(const double* values, double added, std::uint32_t size, double least,
                               double* sums, std::uint32_t* indices) {
    const __m512d bound = _mm512_set1_pd(least);
    const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < size; i += 8) {
      const __m512d sum = _mm512_add_pd(_mm512_loadu_pd(values + i), _mm512_set1_pd(added));
      const auto counted = static_cast<__mmask8>(LaneRange(0, size - i));
      const __mmask8 lanes = _mm512_mask_cmp_pd_mask(counted, sum, bound, _CMP_GE_OQ);
      const __m256i index = _mm256_add_epi32(iota, _mm256_set1_epi32(static_cast<int>(i)));
      _mm512_storeu_pd(sums + count, _mm512_maskz_compress_pd(lanes, sum));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + count),
                          _mm256_maskz_compress_epi32(lanes, index));
      count += static_cast<std::uint32_t>(__builtin_popcount(lanes));
    }
    return count;
  }

  static std::uint32_t CountAbove(const double* values, std::uint32_t size, double bound) {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < size; i += 8) {
      const auto counted = static_cast<__mmask8>(LaneRange(0, size - i));
      const __m512d eight = _mm512_maskz_loadu_pd(counted, values + i);
      count += static_cast<std::uint32_t>(__builtin_popcount(
          _mm512_mask_cmp_pd_mask(counted, eight, _mm512_set1_pd(bound), _CMP_GT_OQ)));
    }
    return count;
  }
};

}  // namespace
}  // namespace lattice_bpd

#pragma GCC diagnostic pop
#pragma GCC pop_options

namespace lattice_bpd {

FusedKernel FusedAvx512() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("bmi2");
  if (!has) return {"avx512", nullptr, nullptr, nullptr, nullptr};
  return {"avx512", &SearchFused<Avx512>, &SearchFusedTree<Avx512>, &SearchFusedChain<Avx512>,
          &SearchFusedSample<Avx512>};
}

}  // namespace lattice_bpd

#else

namespace lattice_bpd {
FusedKernel FusedAvx512() { return {"avx512", nullptr, nullptr, nullptr, nullptr}; }
}  // namespace lattice_bpd

#endif
