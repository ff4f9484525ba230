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
  const __m256i lanes16 = _mm512_castsi512_si256(_mm512_permutex2var_epi16(
      _mm512_load_si512(table.lanes), entry, _mm512_load_si512(table.lanes + 32)));
  const __m256i symbols = _mm256_permutexvar_epi16(
      lanes16, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(query.slot.symbols16)));
  const __m512i lanes = _mm512_cvtepu16_epi32(lanes16);
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
  const auto count = static_cast<std::uint32_t>(__builtin_popcount(hits));
  return std::min(count, query.slot.num_lanes);  // more only in a damaged file
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

// How many of up to 31 sorted samples are at most each of 32 words: a search by halves of all words
// side by side, in registers.
__m512i CountAtMost31(const std::uint16_t* samples, std::uint32_t size, __m512i words) {
  const __m512i all = _mm512_mask_loadu_epi16(_mm512_set1_epi16(-1), LaneRange(0, size), samples);
  __m512i count = _mm512_setzero_si512();
  for (int half = 16; half > 0; half /= 2) {
    const __m512i middle = _mm512_add_epi16(count, _mm512_set1_epi16(static_cast<short>(half - 1)));
    const __mmask32 right = _mm512_cmple_epu16_mask(_mm512_permutexvar_epi16(middle, all), words);
    count = _mm512_mask_add_epi16(count, right, count, _mm512_set1_epi16(static_cast<short>(half)));
  }
  return count;
}

// Likewise of any number, 63 samples a turn.
__m512i CountAtMost(const std::uint16_t* samples, std::uint32_t size, __m512i words) {
  if (size <= 31) return CountAtMost31(samples, size, words);
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

// Where records are, for gathers of 4 bytes, whose offsets are signed. (No field is read beyond the
// last record: a level has one more than n-grams, and these have 4 bytes or more.)
bool CanGather(const PackedLevel& level) {
  return level.form.record_bytes() >= 4 && level.payload.size() < std::size_t{1} << 31;
}
__m512i Offsets(const PackedLevel& level, const std::uint32_t* nodes, __mmask16 lanes) {
  return _mm512_mullo_epi32(_mm512_maskz_loadu_epi32(lanes, nodes),
                            _mm512_set1_epi32(static_cast<int>(level.form.record_bytes())));
}

// 16 numbers of records: floats, or what codes stand for. Of other lanes nothing is read.
__m512 ReadNumbers(const std::uint8_t* at, __m512i offsets, __mmask16 lanes, int bytes,
                   const Span<float>& values) {
  const __m512i bits = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), lanes, offsets, at, 1);
  if (bytes == 4) return _mm512_castsi512_ps(bits);
  const __m512i codes =
      _mm512_min_epu32(_mm512_and_si512(bits, _mm512_set1_epi32((1 << 8 * bytes) - 1)),
                       _mm512_set1_epi32(static_cast<int>(values.size()) - 1));
  return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, codes, values.data(), 4);
}

// Eight numbers times alpha, on the score grid.
__m512d ScaleToGrid(__m256 numbers, double alpha) {
  const __m512d scaled = _mm512_mul_pd(_mm512_cvtps_pd(numbers), _mm512_set1_pd(alpha));
  const __m512d steps =
      _mm512_roundscale_pd(_mm512_mul_pd(scaled, _mm512_set1_pd(0x1p24)), _MM_FROUND_CUR_DIRECTION);
  return _mm512_mul_pd(steps, _mm512_set1_pd(0x1p-24));
}
__m256 Half(__m512 numbers, int half) {
  return half == 0 ? _mm512_castps512_ps256(numbers) : _mm512_extractf32x8_ps(numbers, 1);
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

  static void ListRuns(const FusedRun* runs, const std::uint32_t* targets, std::uint32_t first,
                       std::uint32_t size, std::uint32_t first_row, std::uint32_t tiny_run,
                       FusedRunLists* lists) {
    const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i even = _mm512_add_epi32(iota, iota);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const auto append = [](__mmask16 lanes, __m512i hits, std::uint32_t** at) {
      _mm512_storeu_si512(*at, _mm512_maskz_compress_epi32(lanes, hits));
      *at += __builtin_popcount(lanes);
    };
    FusedRunLists at = *lists;
    for (std::uint32_t i = 0; i < size; i += 16) {
      const std::uint32_t which = LaneRange(0, std::min(size - i, 16u));
      const __m512i low = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(which), runs + i);
      const __m512i high =
          _mm512_maskz_loadu_epi64(static_cast<__mmask8>(which >> 8), runs + i + 8);
      const __m512i num_keys = _mm512_sub_epi32(_mm512_permutex2var_epi32(low, odd, high),
                                                _mm512_permutex2var_epi32(low, even, high));
      const __m512i target = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(which), targets + i);
      const __mmask16 searched = _mm512_mask_cmpge_epu32_mask(
          _mm512_test_epi32_mask(num_keys, num_keys) & static_cast<__mmask16>(which), target,
          _mm512_set1_epi32(static_cast<int>(first_row)));
      const __mmask16 above_tiny = _mm512_mask_cmpgt_epu32_mask(
          searched, num_keys, _mm512_set1_epi32(static_cast<int>(tiny_run)));
      const __mmask16 above_small = _mm512_mask_cmpgt_epu32_mask(
          searched, num_keys, _mm512_set1_epi32(static_cast<int>(kLargeRun)));
      const __m512i hits = _mm512_add_epi32(iota, _mm512_set1_epi32(static_cast<int>(first + i)));
      append(searched & ~above_tiny, hits, &at.tiny);
      append(above_tiny & ~above_small, hits, &at.small);
      append(above_small, hits, &at.large);
    }
    *lists = at;
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

  static void ScoreHits(const PackedLevel& level, double alpha, const double* heads,
                        const std::uint32_t* nodes, const std::uint32_t* lanes, std::uint32_t size,
                        double* scores) {
    if (!CanGather(level)) {
      Scalar::ScoreHits(level, alpha, heads, nodes, lanes, size, scores);
      return;
    }
    for (std::uint32_t i = 0; i < size; i += 16) {
      const auto which = static_cast<__mmask16>(LaneRange(0, size - i));
      const __m512 numbers = ReadNumbers(level.payload.data(), Offsets(level, nodes + i, which),
                                         which, level.form.log_prob_bytes, level.log_prob_values);
      for (int half = 0; half < 2; ++half) {
        const auto eight = static_cast<__mmask8>(which >> 8 * half);
        const __m256i lane = _mm256_maskz_loadu_epi32(eight, lanes + i + 8 * half);
        const __m512d head = _mm512_mask_i32gather_pd(_mm512_setzero_pd(), eight, lane, heads, 8);
        _mm512_mask_storeu_pd(scores + i + 8 * half, eight,
                              _mm512_add_pd(head, ScaleToGrid(Half(numbers, half), alpha)));
      }
    }
  }

  static void ReadHistories(const PackedLevel& level, double alpha, const std::uint32_t* nodes,
                            std::uint32_t size, FusedRun* runs, double* constants) {
    if (!CanGather(level) || level.form.child_bytes != 4) {
      Scalar::ReadHistories(level, alpha, nodes, size, runs, constants);
      return;
    }
    const std::uint8_t* const backoffs = level.payload.data() + level.form.log_prob_bytes;
    const std::uint8_t* const children = backoffs + level.form.backoff_bytes;
    const __m512i most = _mm512_set1_epi32(static_cast<int>(level.num_children));
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (std::uint32_t i = 0; i < size; i += 16) {
      const auto which = static_cast<__mmask16>(LaneRange(0, size - i));
      const __m512i offsets = Offsets(level, nodes + i, which);
      const __m512i end =
          _mm512_min_epu32(_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), which, offsets,
                                                       children + level.form.record_bytes(), 1),
                           most);
      const __m512i begin = _mm512_min_epu32(
          _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), which, offsets, children, 1), end);
      _mm512_mask_storeu_epi64(runs + i, static_cast<__mmask8>(which),
                               _mm512_permutex2var_epi32(begin, first, end));
      _mm512_mask_storeu_epi64(runs + i + 8, static_cast<__mmask8>(which >> 8),
                               _mm512_permutex2var_epi32(begin, second, end));
      const __m512 numbers =
          ReadNumbers(backoffs, offsets, which, level.form.backoff_bytes, level.backoff_values);
      for (int half = 0; half < 2; ++half) {
        const auto eight = static_cast<__mmask8>(which >> 8 * half);
        double* const at = constants + i + 8 * half;
        _mm512_mask_storeu_pd(at, eight,
                              _mm512_add_pd(_mm512_maskz_loadu_pd(eight, at),
                                            ScaleToGrid(Half(numbers, half), alpha)));
      }
    }
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
    return SumOf(total);
  }

  static FusedMassTotals FillMassPairs(const double* suffix_masses, double factor,
                                       const FusedRowHits& hits, const double* hit_weighted,
                                       std::uint32_t size, double* masses) {
    const __m512d factors = _mm512_set1_pd(factor);
    __m512d total = _mm512_setzero_pd(), best = _mm512_setzero_pd();
    const double* hit_masses = hits.scores;
    for (std::uint32_t i = 0; i < size; i += 8) {
      const auto lanes = static_cast<__mmask8>(hits.lane_bits[i / 64] >> (i % 64));
      const int count = __builtin_popcount(lanes);
      const __m512d mass = _mm512_mask_expandloadu_pd(
          _mm512_mul_pd(_mm512_loadu_pd(suffix_masses + i), factors), lanes, hit_masses);
      const __m512d weighted = _mm512_mask_expandloadu_pd(
          _mm512_mul_pd(_mm512_loadu_pd(suffix_masses + size + i), factors), lanes, hit_weighted);
      hit_masses += count;
      hit_weighted += count;
      _mm512_storeu_pd(masses + i, mass);
      _mm512_storeu_pd(masses + size + i, weighted);
      total = _mm512_add_pd(total, mass);
      best = _mm512_max_pd(best, weighted);
    }
    return {SumOf(total), _mm512_reduce_max_pd(best)};
  }

  static void AddGathered(const double* constants, const double* table,
                          const std::uint32_t* indices, std::uint32_t size, double* values) {
    for (std::uint32_t i = 0; i < size; i += 8) {
      const auto which = static_cast<__mmask8>(LaneRange(0, size - i));
      const __m512d sum = _mm512_add_pd(_mm512_maskz_loadu_pd(which, constants + i),
                                        Gather(table, indices + i, which));
      _mm512_mask_storeu_pd(values + i, which,
                            _mm512_add_pd(_mm512_maskz_loadu_pd(which, values + i), sum));
    }
  }

  static void MultiplyGathered(const double* values, const double* table,
                               const std::uint32_t* indices, std::uint32_t size, double* out) {
    for (std::uint32_t i = 0; i < size; i += 8) {
      const auto which = static_cast<__mmask8>(LaneRange(0, size - i));
      _mm512_mask_storeu_pd(out + i, which,
                            _mm512_mul_pd(_mm512_maskz_loadu_pd(which, values + i),
                                          Gather(table, indices + i, which)));
    }
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

 private:
  // As `Sum` (fused_exponentials.h) adds up eight.
  static double SumOf(__m512d values) {
    const __m256d four =
        _mm256_add_pd(_mm512_castpd512_pd256(values), _mm512_extractf64x4_pd(values, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
  }

  static __m512d Gather(const double* table, const std::uint32_t* indices, __mmask8 which) {
    return _mm512_mask_i32gather_pd(_mm512_setzero_pd(), which,
                                    _mm256_maskz_loadu_epi32(which, indices), table, 8);
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
