// The fused search with AVX2: 16 two-byte keys or 8 four-byte ones a compare, 4 doubles an add.
#include "lattice_bpd/draft/fused_kernels.h"

// clang, which lacks GCC's target pragma, builds this where the whole file is compiled for it.
#if defined(__x86_64__) && (!defined(__clang__) || defined(__AVX2__))

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>
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

// 32 keys against one, as bits.
std::uint32_t EqualLanes(const std::uint16_t* at, Symbol word) {
  const __m256i wanted = _mm256_set1_epi16(static_cast<short>(word));
  const auto* vectors = reinterpret_cast<const __m256i*>(at);
  const __m256i low = _mm256_cmpeq_epi16(_mm256_loadu_si256(vectors), wanted);
  const __m256i high = _mm256_cmpeq_epi16(_mm256_loadu_si256(vectors + 1), wanted);
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(bytes));
}

std::uint32_t EqualLanes(const std::uint32_t* at, Symbol word) {
  const __m256i wanted = _mm256_set1_epi32(static_cast<int>(word));
  const auto* vectors = reinterpret_cast<const __m256i*>(at);
  __m256i equal[4];
  for (int i = 0; i < 4; ++i) {
    equal[i] = _mm256_cmpeq_epi32(_mm256_loadu_si256(vectors + i), wanted);
  }
  // Packed within halves of 16 bytes, which leaves groups of four bytes in the wrong order.
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(equal[0], equal[1]),
                                           _mm256_packs_epi32(equal[2], equal[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return static_cast<std::uint32_t>(
      _mm256_movemask_epi8(_mm256_permutevar8x32_epi32(bytes, order)));
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

// For each set of 8 bytes: those in the set side by side, and how many of the set are before each.
struct ByteTables {
  std::uint64_t compress[256] = {};
  std::uint64_t rank[256] = {};

  constexpr ByteTables() {
    for (int set = 0; set < 256; ++set) {
      int count = 0;
      for (int i = 0; i < 8; ++i) {
        rank[set] |= static_cast<std::uint64_t>(count) << 8 * i;
        if ((set >> i & 1) == 0) continue;
        compress[set] |= static_cast<std::uint64_t>(i) << 8 * count;
        ++count;
      }
    }
  }
};
constexpr ByteTables kByteTables;

__m128i LoadBytes(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }

// 16 two-byte numbers below 256 as bytes.
__m128i ToBytes(__m256i words) {
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

// The lanes that a slot's table has for 16 hashes below 64: four lookups in 16 bytes each, of which
// those give 0 whose index has its top bit set.
__m128i LookUpLanes(const FusedSymbolTable& table, __m128i hashes) {
  const auto* const lanes = reinterpret_cast<const __m256i*>(table.lanes);
  const __m256i both = _mm256_broadcastsi128_si256(hashes);
  const __m256i top = _mm256_set1_epi8(0x70);
  const __m256i quarter01 = _mm256_set_m128i(_mm_set1_epi8(16), _mm_setzero_si128());
  const __m256i quarter23 = _mm256_set_m128i(_mm_set1_epi8(48), _mm_set1_epi8(32));
  const __m256i index01 = _mm256_add_epi8(_mm256_xor_si256(both, quarter01), top);
  const __m256i index23 = _mm256_add_epi8(_mm256_xor_si256(both, quarter23), top);
  const __m256i all = _mm256_or_si256(_mm256_shuffle_epi8(_mm256_load_si256(lanes), index01),
                                      _mm256_shuffle_epi8(_mm256_load_si256(lanes + 1), index23));
  return _mm_or_si128(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

// Eight bytes plus `added`, as 32-bit numbers.
void StoreEight(__m128i bytes, std::uint32_t added, std::uint32_t* at) {
  const __m256i sums =
      _mm256_add_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(static_cast<int>(added)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), sums);
}

// The bits of the lanes of `hits`, whose bytes are all ones; different lanes below 16.
std::uint32_t LaneBitsOf(__m128i lanes, __m128i hits) {
  const __m128i low = _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m128i high = _mm_shuffle_epi32(low, 0x4e);
  const __m128i zero = _mm_setzero_si128();
  const __m128i low_sums = _mm_sad_epu8(_mm_and_si128(_mm_shuffle_epi8(low, lanes), hits), zero);
  const __m128i high_sums = _mm_sad_epu8(_mm_and_si128(_mm_shuffle_epi8(high, lanes), hits), zero);
  const __m128i sums = _mm_add_epi32(low_sums, _mm_slli_epi32(high_sums, 8));
  return static_cast<std::uint32_t>(
      _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_srli_si128(sums, 8))));
}

// 16 keys by the low and the high 16 bits of each; two-byte ones have no high bits.
struct Words16 {
  __m256i low, high;

  explicit Words16(const std::uint16_t* at)
      : low(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))),
        high(_mm256_setzero_si256()) {}
  explicit Words16(const std::uint32_t* at) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at) + 1);
    const __m256i low_bits = _mm256_set1_epi32(0xffff);
    low = Pack(_mm256_and_si256(first, low_bits), _mm256_and_si256(second, low_bits));
    high = Pack(_mm256_srli_epi32(first, 16), _mm256_srli_epi32(second, 16));
  }

 private:
  static __m256i Pack(__m256i first, __m256i second) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8);
  }
};

// Which of 16 words are the same 16 bits of the symbols of `lanes`, whose two bytes are given for
// each lane.
__m128i EqualWords(__m256i words, __m128i lanes, const std::uint8_t* low,
                   const std::uint8_t* high) {
  const __m128i low_bytes = ToBytes(_mm256_and_si256(words, _mm256_set1_epi16(0xff)));
  const __m128i high_bytes = ToBytes(_mm256_srli_epi16(words, 8));
  return _mm_and_si128(_mm_cmpeq_epi8(_mm_shuffle_epi8(LoadBytes(low), lanes), low_bytes),
                       _mm_cmpeq_epi8(_mm_shuffle_epi8(LoadBytes(high), lanes), high_bytes));
}

// Up to 16 keys and 16 lanes or fewer: all keys at once through the slot's table, and those that
// match put side by side. Keys rise and lanes rise with their symbols, so hits come by lane. Reads
// 16 keys. No branch depends on the data.
template <typename Key>
std::uint32_t FindIn16Keys(const Key* keys, FusedRun run, const FusedQuery& query,
                           const FusedOutput& out) {
  const FusedSymbolTable& table = *query.slot.table;
  const Words16 words(keys + run.begin);
  const __m256i product =
      _mm256_mullo_epi16(words.low, _mm256_set1_epi16(static_cast<short>(table.factor)));
  const __m128i lanes = LookUpLanes(table, ToBytes(_mm256_srli_epi16(product, 10)));
  __m128i equal = EqualWords(words.low, lanes, table.bytes[0], table.bytes[1]);
  if (sizeof(Key) == 4) {
    equal = _mm_and_si128(equal, EqualWords(words.high, lanes, table.bytes[2], table.bytes[3]));
  }
  // Only lanes that the suffix has, and only keys of the run.
  const auto queried = static_cast<std::uint32_t>(*query.lane_bits);
  const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m128i bits = _mm_set1_epi64x(static_cast<long long>(0x8040201008040201u));
  const __m128i queried_lanes = _mm_cmpeq_epi8(
      _mm_and_si128(_mm_shuffle_epi8(_mm_cvtsi32_si128(static_cast<int>(queried)), spread), bits),
      bits);
  const __m128i iota = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m128i in_run =
      _mm_cmpgt_epi8(_mm_set1_epi8(static_cast<char>(run.end - run.begin)), iota);
  const __m128i hits =
      _mm_and_si128(_mm_and_si128(equal, in_run), _mm_shuffle_epi8(queried_lanes, lanes));
  const auto set = static_cast<std::uint32_t>(_mm_movemask_epi8(hits));

  const auto low_count = static_cast<std::uint32_t>(__builtin_popcount(queried & 255));
  const __m128i rank_of_lane =
      _mm_set_epi64x(static_cast<long long>(kByteTables.rank[queried >> 8 & 255] +
                                            low_count * std::uint64_t{0x0101010101010101}),
                     static_cast<long long>(kByteTables.rank[queried & 255]));
  const __m128i ranks = _mm_shuffle_epi8(rank_of_lane, lanes);
  std::uint32_t count = 0;
  for (std::uint32_t half = 0; half < 2; ++half) {
    const std::uint32_t eight = set >> 8 * half & 255;
    const __m128i kept = _mm_set1_epi64x(
        static_cast<long long>(kByteTables.compress[eight] + half * 0x0808080808080808u));
    StoreEight(_mm_shuffle_epi8(lanes, kept), 0, out.lane + count);
    StoreEight(kept, run.begin, out.node + count);
    StoreEight(_mm_shuffle_epi8(ranks, kept), query.first_hit, out.suffix_hit + count);
    count += static_cast<std::uint32_t>(__builtin_popcount(eight));
  }
  *out.lane_bits = LaneBitsOf(lanes, hits);
  return std::min(count, query.slot.num_lanes);  // more only in a damaged file
}

// A run of kLargeRun keys or fewer, 16 a turn.
template <typename Key>
std::uint32_t FindInTurns(const Key* keys, FusedRun run, const FusedQuery& query,
                          const FusedOutput& out) {
  std::uint32_t count = 0;
  std::uint64_t lane_bits = 0;
  for (std::uint32_t at = run.begin; at < run.end; at += 16) {
    const FusedOutput next = {out.lane + count, out.node + count, out.suffix_hit + count,
                              out.lane_bits};
    count += FindIn16Keys(keys, {at, std::min(at + 16, run.end)}, query, next);
    count = std::min(count, query.slot.num_lanes);
    lane_bits |= *out.lane_bits;
  }
  *out.lane_bits = lane_bits;
  return count;
}

// How many sorted samples are at most each of 16 words; for samples of two bytes and of four.
struct Counts16 {
  using Sample = std::uint16_t;
  __m256i words;
  __m256i counts = _mm256_setzero_si256();

  explicit Counts16(const FusedSlot& slot, std::uint32_t lane)
      : words(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(slot.symbols16 + lane))) {}
  void Add(Sample sample) {
    const __m256i above = _mm256_subs_epu16(_mm256_set1_epi16(static_cast<short>(sample)), words);
    counts = _mm256_sub_epi16(counts, _mm256_cmpeq_epi16(above, _mm256_setzero_si256()));
  }
  // Of 8 lanes.
  __m256i Half(int half) const {
    return _mm256_cvtepu16_epi32(half == 0 ? _mm256_castsi256_si128(counts)
                                           : _mm256_extracti128_si256(counts, 1));
  }
};

struct Counts32 {
  using Sample = std::uint32_t;
  __m256i words[2];
  __m256i counts[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};

  // Eight lanes may be all that a slot has.
  explicit Counts32(const FusedSlot& slot, std::uint32_t lane)
      : words{Load(slot.symbols + lane),
              lane + 8 < slot.num_lanes ? Load(slot.symbols + lane + 8) : _mm256_setzero_si256()} {}
  // Symbols are below 2^31; where a lane has none, any count will do.
  void Add(Sample sample) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(sample));
    for (int half = 0; half < 2; ++half) {
      const __m256i above = _mm256_cmpgt_epi32(all, words[half]);
      counts[half] = _mm256_add_epi32(counts[half], _mm256_add_epi32(above, _mm256_set1_epi32(1)));
    }
  }
  __m256i Half(int half) const { return counts[half]; }

 private:
  static __m256i Load(const Symbol* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
};

// Of 8 lanes: the blocks that those counts of samples lead to.
void StoreBlocks(FusedRun run, __m256i counts, FusedBlock* blocks) {
  const __m256i first = _mm256_set1_epi32(static_cast<int>(run.begin / kSampleStride));
  const __m256i base = _mm256_slli_epi32(_mm256_add_epi32(counts, first), kSampleShift);
  const __m256i begin = _mm256_set1_epi32(static_cast<int>(run.begin));
  const __m256i end = _mm256_set1_epi32(static_cast<int>(run.end));
  const __m256i ones = _mm256_set1_epi32(-1);
  const __m256i low = _mm256_sub_epi32(_mm256_max_epu32(base, begin), base);
  const __m256i high = _mm256_sub_epi32(end, base);  // shifts by 32 or more give 0
  const __m256i keys =
      _mm256_andnot_si256(_mm256_sllv_epi32(ones, high), _mm256_sllv_epi32(ones, low));
  const __m256i even = _mm256_unpacklo_epi32(base, keys);  // lanes 0, 1, 4, 5
  const __m256i odd = _mm256_unpackhi_epi32(base, keys);   // lanes 2, 3, 6, 7
  auto* const at = reinterpret_cast<__m256i*>(blocks);
  _mm256_storeu_si256(at, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(at + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

// Of lanes `lane` .. lane + 15: the blocks that the counts of samples lead to. Of many samples
// every 16th is compared with all words, and the 15 before the next one are searched by halves for
// each.
template <typename Counts>
void StoreBlocksOf(FusedRun run, const FusedSlot& slot, std::uint32_t lane,
                   const typename Counts::Sample* samples, std::uint32_t size, FusedBlock* blocks) {
  Counts counts(slot, lane);
  const std::uint32_t stride = size <= 96 ? 1 : 16;
  for (std::uint32_t i = stride - 1; i < size; i += stride) counts.Add(samples[i]);
  for (std::uint32_t half = 0; half < 2 && lane < slot.num_lanes; ++half, lane += 8) {
    alignas(32) std::uint32_t each[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(each), counts.Half(static_cast<int>(half)));
    for (std::uint32_t i = 0; i < 8 && stride > 1; ++i) {
      const std::uint32_t begin = stride * each[i];
      each[i] = begin + CountAtMost(samples + begin, std::min(size - begin, stride - 1),
                                    slot.symbols[lane + i]);
    }
    StoreBlocks(run, _mm256_load_si256(reinterpret_cast<const __m256i*>(each)), blocks + lane);
  }
}

struct Avx2 : Scalar {
  static constexpr bool kUsesTables = true;
  static std::uint32_t TinyRun(const FusedSymbolTable& table) { return table.factor != 0 ? 16 : 0; }
  template <typename Key>
  static std::uint32_t FindInTinyRun(const FusedLevel<Key>& level, FusedRun run,
                                     const FusedQuery& query, const FusedOutput& out) {
    if (run.begin + std::uint64_t{16} > level.size) return FindInSmallRun(level, run, query, out);
    return FindIn16Keys(level.keys, run, query, out);
  }

  template <typename Key>
  static std::uint32_t FindInSmallRun(const FusedLevel<Key>& level, FusedRun run,
                                      const FusedQuery& query, const FusedOutput& out) {
    if (query.slot.table->factor != 0 && run.begin + std::uint64_t{64} <= level.size) {
      return FindInTurns(level.keys, run, query, out);
    }
    return FindEach(query, out, [&](std::uint32_t, Symbol word, std::uint32_t* node) {
      return FindInPart(level, run, word, node);
    });
  }

  template <typename Key>
  static void FindBlocks(const FusedLevel<Key>& level, FusedRun run, const FusedQuery& query,
                         FusedBlock* blocks) {
    using Counts = std::conditional_t<sizeof(Key) == 2, Counts16, Counts32>;
    const std::uint32_t first = run.begin / kSampleStride;
    const std::uint32_t size = (run.end - 1) / kSampleStride - first;
    for (std::uint32_t lane = 0; lane < query.slot.num_lanes; lane += 16) {
      StoreBlocksOf<Counts>(run, query.slot, lane, level.samples + first + 1, size, blocks);
    }
    PrefetchBlocks(level, query, blocks);
  }

  template <typename Key>
  static std::uint32_t FindInBlocks(const FusedLevel<Key>& level, const FusedQuery& query,
                                    const FusedBlock* blocks, const FusedOutput& out) {
    const std::uint64_t whole = level.size / kSampleStride * kSampleStride;
    return FindEach(query, out, [&](std::uint32_t lane, Symbol word, std::uint32_t* node) {
      const FusedBlock block = blocks[lane];
      if (block.base >= whole) return FindByHalves(level.keys, RunIn(block), word, node);
      const std::uint32_t equal = EqualLanes(level.keys + block.base, word) & block.keys;
      *node = block.base + _tzcnt_u32(equal);
      return equal != 0;
    });
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

  // Among at most kLargeRun keys: block by block.
  template <typename Key>
  static bool FindInPart(const FusedLevel<Key>& level, FusedRun part, Symbol word,
                         std::uint32_t* node) {
    for (std::uint32_t at = part.begin; at < part.end; at += 32) {
      if (at + std::uint64_t{32} > level.size) {
        return FindByHalves(level.keys, {at, part.end}, word, node);
      }
      const std::uint32_t equal = EqualLanes(level.keys + at, word);
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
