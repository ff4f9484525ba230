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
#pragma GCC diagnostic ignored "-Wuninitialized"        // the same, less optimized
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt,lzcnt")

#include "lattice_bpd/draft/fused_scalar.h"
#include "lattice_bpd/draft/fused_search.h"

namespace lattice_bpd {
namespace {

// 32 keys from `at` on: those lanes only, others are not even read.
template <typename Key>
struct KeyBlock;
template <>
struct KeyBlock<std::uint16_t> {
  __m512i keys;
  std::uint32_t lanes;

  KeyBlock(const std::uint16_t* at, std::uint32_t which)
      : keys(_mm512_maskz_loadu_epi16(which, at)), lanes(which) {}
  std::uint32_t Equal(Symbol word) const {
    return _mm512_mask_cmpeq_epu16_mask(lanes, keys, _mm512_set1_epi16(static_cast<short>(word)));
  }
};
template <>
struct KeyBlock<std::uint32_t> {
  __m512i low, high;
  std::uint32_t lanes;

  KeyBlock(const std::uint32_t* at, std::uint32_t which)
      : low(_mm512_maskz_loadu_epi32(static_cast<__mmask16>(which), at)),
        high(_mm512_maskz_loadu_epi32(static_cast<__mmask16>(which >> 16), at + 16)),
        lanes(which) {}
  std::uint32_t Equal(Symbol word) const {
    const __m512i wanted = _mm512_set1_epi32(static_cast<int>(word));
    return lanes & (_mm512_cmpeq_epu32_mask(low, wanted) |
                    static_cast<std::uint32_t>(_mm512_cmpeq_epu32_mask(high, wanted)) << 16);
  }
};

// Up to 16 sorted keys from `at` on as 32-bit numbers: `size` of them, others are not even read;
// then the largest number, which is no symbol.
__m512i LoadKeys(const std::uint16_t* at, std::uint32_t size) {
  const auto which = static_cast<__mmask16>(LaneRange(0, size));
  return _mm512_mask_cvtepu16_epi32(_mm512_set1_epi32(-1), which,
                                    _mm256_maskz_loadu_epi16(which, at));
}
__m512i LoadKeys(const std::uint32_t* at, std::uint32_t size) {
  return _mm512_mask_loadu_epi32(_mm512_set1_epi32(-1), static_cast<__mmask16>(LaneRange(0, size)),
                                 at);
}

// Sorted keys in registers: kCapacity at most, and then at least one number that is no symbol. At
// has those at 16 indices; At(-1) is no symbol.
template <typename Key>
struct Keys7 {
  static constexpr std::uint32_t kCapacity = 7;
  __m512i keys;
  Keys7(const Key* at, std::uint32_t size) : keys(LoadKeys(at, size)) {}
  __m512i At(__m512i index) const { return _mm512_permutexvar_epi32(index, keys); }
};
template <typename Key>
struct Keys31 {
  static constexpr std::uint32_t kCapacity = 31;
  __m512i low, high;
  Keys31(const Key* at, std::uint32_t size)
      : low(LoadKeys(at, std::min(size, 16u))),
        high(LoadKeys(at + 16, size - std::min(size, 16u))) {}
  __m512i At(__m512i index) const { return _mm512_permutex2var_epi32(low, index, high); }
};
template <typename Key>
struct Keys63 {
  static constexpr std::uint32_t kCapacity = 63;
  Keys31<Key> low, high;
  Keys63(const Key* at, std::uint32_t size)
      : low(at, std::min(size, 32u)), high(at + 32, size - std::min(size, 32u)) {}
  __m512i At(__m512i index) const {
    const __mmask16 upper = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
    return _mm512_mask_mov_epi32(low.At(index), upper, high.At(index));
  }
};

// How many of the keys are at most each of 16 words: binary searches side by side.
template <typename Keys>
__m512i CountAtMost(const Keys& keys, __m512i words) {
  __m512i count = _mm512_setzero_si512();
  for (int half = (Keys::kCapacity + 1) / 2; half > 0; half /= 2) {
    const __m512i middle = _mm512_add_epi32(count, _mm512_set1_epi32(half - 1));
    const __mmask16 right = _mm512_cmple_epu32_mask(keys.At(middle), words);
    count = _mm512_mask_add_epi32(count, right, count, _mm512_set1_epi32(half));
  }
  return count;
}

// A run that fits into registers: 16 lanes at once, without a branch on the data.
template <typename Keys, typename Key>
std::uint32_t FindInRun(const Key* keys, FusedRun run, const FusedQuery& query,
                        const FusedOutput& out) {
  const Keys sorted(keys + run.begin, run.end - run.begin);
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::uint32_t count = 0, suffix_hit = query.first_hit;
  for (std::uint32_t lane = 0; lane < query.slot.num_lanes; lane += 16) {
    const auto queried = static_cast<__mmask16>(query.lane_bits[lane / 64] >> (lane % 64));
    const __m512i words = _mm512_maskz_loadu_epi32(queried, query.slot.symbols + lane);
    const __m512i index = _mm512_sub_epi32(CountAtMost(sorted, words), _mm512_set1_epi32(1));
    const __mmask16 hits = _mm512_mask_cmpeq_epi32_mask(queried, sorted.At(index), words);
    const __m512i lanes = _mm512_add_epi32(iota, _mm512_set1_epi32(static_cast<int>(lane)));
    const __m512i node = _mm512_add_epi32(index, _mm512_set1_epi32(static_cast<int>(run.begin)));
    const __m512i rank = _mm512_add_epi32(_mm512_maskz_expand_epi32(queried, iota),
                                          _mm512_set1_epi32(static_cast<int>(suffix_hit)));
    _mm512_storeu_si512(out.lane + count, _mm512_maskz_compress_epi32(hits, lanes));
    _mm512_storeu_si512(out.node + count, _mm512_maskz_compress_epi32(hits, node));
    _mm512_storeu_si512(out.suffix_hit + count, _mm512_maskz_compress_epi32(hits, rank));
    const std::uint64_t before = lane % 64 == 0 ? 0 : out.lane_bits[lane / 64];
    out.lane_bits[lane / 64] = before | std::uint64_t{hits} << (lane % 64);
    count += static_cast<std::uint32_t>(__builtin_popcount(hits));
    suffix_hit += static_cast<std::uint32_t>(__builtin_popcount(queried));
  }
  return count;
}

// Of 16 lanes: the blocks that those counts of samples lead to.
void StoreBlocks(FusedRun run, __m512i counts, __mmask16 lanes, FusedBlock* blocks) {
  const __m512i first = _mm512_set1_epi32(static_cast<int>(run.begin / kSampleStride));
  const __m512i block = _mm512_add_epi32(counts, first);
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

// How many of sorted samples are at most each of 16 words.
template <typename Key>
__m512i CountSamples(const Key* samples, std::uint32_t size, __m512i words) {
  if (size <= 31) return CountAtMost(Keys31<Key>(samples, size), words);
  __m512i count = _mm512_setzero_si512();
  for (std::uint32_t at = 0; at < size; at += 63) {
    const Keys63<Key> some(samples + at, std::min(size - at, 63u));
    count = _mm512_add_epi32(count, CountAtMost(some, words));
  }
  return count;
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
  static std::uint32_t TinyRun(const FusedSymbolTable&) { return 7; }
  template <typename Key>
  static std::uint32_t FindInTinyRun(const FusedLevel<Key>& level, FusedRun run,
                                     const FusedQuery& query, const FusedOutput& out) {
    return FindInRun<Keys7<Key>>(level.keys, run, query, out);
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

  template <typename Key>
  static std::uint32_t FindInSmallRun(const FusedLevel<Key>& level, FusedRun run,
                                      const FusedQuery& query, const FusedOutput& out) {
    return run.end - run.begin <= 31 ? FindInRun<Keys31<Key>>(level.keys, run, query, out)
                                     : FindInRun<Keys63<Key>>(level.keys, run, query, out);
  }

  // The blocks of all lanes, those of the query or not.
  template <typename Key>
  static void FindBlocks(const FusedLevel<Key>& level, FusedRun run, const FusedQuery& query,
                         FusedBlock* blocks) {
    const std::uint32_t first = run.begin / kSampleStride;
    const std::uint32_t size = (run.end - 1) / kSampleStride - first;
    for (std::uint32_t lane = 0; lane < query.slot.num_lanes; lane += 16) {
      const auto lanes = static_cast<__mmask16>(LaneRange(0, query.slot.num_lanes - lane));
      const __m512i words = _mm512_maskz_loadu_epi32(lanes, query.slot.symbols + lane);
      StoreBlocks(run, CountSamples(level.samples + first + 1, size, words), lanes, blocks + lane);
    }
    PrefetchBlocks(level, query, blocks);
  }
  template <typename Key>
  static std::uint32_t FindInBlocks(const FusedLevel<Key>& level, const FusedQuery& query,
                                    const FusedBlock* blocks, const FusedOutput& out) {
    return FindEach(query, out, [&](std::uint32_t lane, Symbol word, std::uint32_t* node) {
      const FusedBlock block = blocks[lane];
      const std::uint32_t equal = KeyBlock<Key>(level.keys + block.base, block.keys).Equal(word);
      *node = block.base + _tzcnt_u32(equal);
      return equal != 0;
    });
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
