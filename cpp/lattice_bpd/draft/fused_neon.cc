// The fused search with NEON: 8 two-byte keys a compare, 2 doubles an add. Every 64-bit ARM
// processor has it.
#include "lattice_bpd/draft/fused_kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include "lattice_bpd/draft/fused_scalar.h"
#include "lattice_bpd/draft/fused_search.h"

namespace lattice_bpd {
namespace {

// All ones in the lanes of eight keys that equal a word.
uint16x8_t EqualLanes(uint16x8_t keys, Symbol word) {
  return vceqq_u16(keys, vdupq_n_u16(static_cast<std::uint16_t>(word)));
}
uint16x8_t EqualLanes(const uint32x4x2_t& keys, Symbol word) {
  const uint32x4_t wanted = vdupq_n_u32(word);
  return vuzp1q_u16(vreinterpretq_u16_u32(vceqq_u32(keys.val[0], wanted)),
                    vreinterpretq_u16_u32(vceqq_u32(keys.val[1], wanted)));
}

uint16x8_t LoadEight(const std::uint16_t* at) { return vld1q_u16(at); }
uint32x4x2_t LoadEight(const std::uint32_t* at) { return {{vld1q_u32(at), vld1q_u32(at + 4)}}; }

// Eight keys in registers.
template <typename Key>
struct EightKeys {
  static constexpr std::uint32_t kCount = 8;
  decltype(LoadEight(static_cast<const Key*>(nullptr))) keys;

  explicit EightKeys(const Key* at) : keys(LoadEight(at)) {}
  // Those that equal a word, as bits.
  std::uint32_t Equal(Symbol word) const {
    const uint16x8_t key_bits = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddvq_u16(vandq_u16(EqualLanes(keys, word), key_bits));
  }
};

// Likewise 32.
template <typename Key>
struct Block {
  static constexpr std::uint32_t kCount = 32;
  EightKeys<Key> parts[4];

  explicit Block(const Key* at)
      : parts{EightKeys<Key>(at), EightKeys<Key>(at + 8), EightKeys<Key>(at + 16),
              EightKeys<Key>(at + 24)} {}
  std::uint32_t Equal(Symbol word) const {
    const uint8x16_t low = Narrow(EqualLanes(parts[0].keys, word), EqualLanes(parts[1].keys, word));
    const uint8x16_t high =
        Narrow(EqualLanes(parts[2].keys, word), EqualLanes(parts[3].keys, word));
    const uint8x16_t key_bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t sums = vpaddq_u8(vandq_u8(low, key_bits), vandq_u8(high, key_bits));
    sums = vpaddq_u8(sums, sums);
    sums = vpaddq_u8(sums, sums);
    return vgetq_lane_u32(vreinterpretq_u32_u8(sums), 0);
  }

 private:
  static uint8x16_t Narrow(uint16x8_t a, uint16x8_t b) {
    return vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
  }
};

// Likewise 64.
template <typename Key>
struct TwoBlocks {
  static constexpr std::uint32_t kCount = 64;
  Block<Key> low, high;

  explicit TwoBlocks(const Key* at) : low(at), high(at + 32) {}
  std::uint64_t Equal(Symbol word) const {
    return low.Equal(word) | std::uint64_t{high.Equal(word)} << 32;
  }
};

// A run that starts `Keys`: loads them once, compares each candidate. The keys after the run, which
// are those of other runs, do not count.
template <typename Keys, typename Key>
std::uint32_t FindInKeys(const Key* keys, FusedRun run, const FusedQuery& query,
                         const FusedOutput& out) {
  const Keys loaded(keys + run.begin);
  const std::uint32_t size = run.end - run.begin;
  const std::uint64_t counted = size == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << size) - 1;
  return FindEach(query, out, [&](std::uint32_t, Symbol word, std::uint32_t* node) {
    const std::uint64_t equal = loaded.Equal(word) & counted;
    *node = run.begin + static_cast<std::uint32_t>(__builtin_ctzll(equal | std::uint64_t{1} << 63));
    return equal != 0;
  });
}

// The bytes of a pair of doubles for each set of lanes: those of the lanes in the set come from the
// start of another pair, in order; the others stay (their bytes are out of range for TBX).
struct LaneTable {
  alignas(16) std::uint8_t expand[4][16] = {};

  constexpr LaneTable() {
    for (int set = 0; set < 4; ++set) {
      int count = 0;
      for (int lane = 0; lane < 2; ++lane) {
        const bool in_set = (set >> lane & 1) != 0;
        for (int byte = 0; byte < 8; ++byte) {
          expand[set][8 * lane + byte] =
              in_set ? static_cast<std::uint8_t>(8 * count + byte) : std::uint8_t{0xff};
        }
        count += in_set;
      }
    }
  }
};
constexpr LaneTable kLaneTable;

// `values` with the next of `own` in the lanes of a set.
float64x2_t PutLanes(float64x2_t values, const double* own, std::uint32_t set) {
  return vreinterpretq_f64_u8(vqtbx1q_u8(vreinterpretq_u8_f64(values),
                                         vreinterpretq_u8_f64(vld1q_f64(own)),
                                         vld1q_u8(kLaneTable.expand[set])));
}

struct Neon : Scalar {
  static std::uint32_t TinyRun(const FusedSymbolTable&) { return 8; }
  template <typename Key>
  static std::uint32_t FindInTinyRun(const FusedLevel<Key>& level, FusedRun run,
                                     const FusedQuery& query, const FusedOutput& out) {
    return FindWith<EightKeys<Key>>(level, run, query, out);
  }

  template <typename Key>
  static std::uint32_t FindInSmallRun(const FusedLevel<Key>& level, FusedRun run,
                                      const FusedQuery& query, const FusedOutput& out) {
    return run.end - run.begin <= 32 ? FindWith<Block<Key>>(level, run, query, out)
                                     : FindWith<TwoBlocks<Key>>(level, run, query, out);
  }

  template <typename Key>
  static std::uint32_t FindInBlocks(const FusedLevel<Key>& level, const FusedQuery& query,
                                    const FusedBlock* blocks, const FusedOutput& out) {
    return FindEach(query, out, [&](std::uint32_t lane, Symbol word, std::uint32_t* node) {
      const FusedBlock block = blocks[lane];
      if (std::uint64_t{block.base} + kSampleStride > level.size) {
        return FindByHalves(level.keys, RunIn(block), word, node);
      }
      const std::uint32_t equal = Block<Key>(level.keys + block.base).Equal(word) & block.keys;
      *node = block.base + static_cast<std::uint32_t>(
                               __builtin_ctzll(std::uint64_t{equal} | std::uint64_t{1} << 32));
      return equal != 0;
    });
  }

  static double FillRow(const double* suffix_values, double added, const FusedRowHits& hits,
                        std::uint32_t size, double* values) {
    const float64x2_t constant = vdupq_n_f64(added);
    float64x2_t best = vdupq_n_f64(kMinusInfinity);
    const double* scores = hits.scores;
    for (std::uint32_t i = 0; i < size; i += 2) {
      const std::uint32_t set = hits.lane_bits[i / 64] >> (i % 64) & 3;
      const float64x2_t value =
          PutLanes(vaddq_f64(vld1q_f64(suffix_values + i), constant), scores, set);
      scores += (set & 1) + (set >> 1);
      vst1q_f64(values + i, value);
      best = vmaxnmq_f64(best, value);
    }
    return vmaxnmvq_f64(best);
  }

  static double FillMasses(const double* suffix_masses, double factor, const FusedRowHits& hits,
                           std::uint32_t size, double* masses) {
    const float64x2_t factors = vdupq_n_f64(factor);
    float64x2_t totals[4] = {vdupq_n_f64(0.0), vdupq_n_f64(0.0), vdupq_n_f64(0.0),
                             vdupq_n_f64(0.0)};
    const double* own_masses = hits.scores;
    for (std::uint32_t i = 0; i < size; i += 8) {
      for (std::uint32_t k = 0; k < 4; ++k) {
        const std::uint32_t set = hits.lane_bits[i / 64] >> (i % 64 + 2 * k) & 3;
        const float64x2_t mass =
            PutLanes(vmulq_f64(vld1q_f64(suffix_masses + i + 2 * k), factors), own_masses, set);
        own_masses += (set & 1) + (set >> 1);
        vst1q_f64(masses + i + 2 * k, mass);
        totals[k] = vaddq_f64(totals[k], mass);
      }
    }
    return SumOf(totals);
  }

  static FusedMassTotals FillMassPairs(const double* suffix_masses, double factor,
                                       const FusedRowHits& hits, const double* hit_weighted,
                                       std::uint32_t size, double* masses) {
    const float64x2_t factors = vdupq_n_f64(factor);
    float64x2_t totals[4] = {vdupq_n_f64(0.0), vdupq_n_f64(0.0), vdupq_n_f64(0.0),
                             vdupq_n_f64(0.0)};
    float64x2_t best = vdupq_n_f64(0.0);
    const double* hit_masses = hits.scores;
    for (std::uint32_t i = 0; i < size; i += 8) {
      for (std::uint32_t k = 0; k < 4; ++k) {
        const std::uint32_t at = i + 2 * k;
        const std::uint32_t set = hits.lane_bits[i / 64] >> (i % 64 + 2 * k) & 3;
        const float64x2_t mass =
            PutLanes(vmulq_f64(vld1q_f64(suffix_masses + at), factors), hit_masses, set);
        const float64x2_t weighted =
            PutLanes(vmulq_f64(vld1q_f64(suffix_masses + size + at), factors), hit_weighted, set);
        const std::uint32_t count = (set & 1) + (set >> 1);
        hit_masses += count;
        hit_weighted += count;
        vst1q_f64(masses + at, mass);
        vst1q_f64(masses + size + at, weighted);
        totals[k] = vaddq_f64(totals[k], mass);
        best = vmaxnmq_f64(best, weighted);
      }
    }
    return {SumOf(totals), vmaxnmvq_f64(best)};
  }

  static std::uint32_t CountAbove(const double* values, std::uint32_t size, double bound) {
    const float64x2_t bounds = vdupq_n_f64(bound);
    uint64x2_t counts[2] = {vdupq_n_u64(0), vdupq_n_u64(0)};
    std::uint32_t i = 0;
    for (; i + 4 <= size; i += 4) {  // a comparison that holds is -1
      counts[0] = vsubq_u64(counts[0], vcgtq_f64(vld1q_f64(values + i), bounds));
      counts[1] = vsubq_u64(counts[1], vcgtq_f64(vld1q_f64(values + i + 2), bounds));
    }
    auto count = static_cast<std::uint32_t>(vaddvq_u64(vaddq_u64(counts[0], counts[1])));
    for (; i < size; ++i) count += values[i] > bound;
    return count;
  }

 private:
  // As `Sum` (fused_exponentials.h) adds up eight.
  static double SumOf(const float64x2_t* totals) {
    const float64x2_t two =
        vaddq_f64(vaddq_f64(totals[0], totals[2]), vaddq_f64(totals[1], totals[3]));
    return vgetq_lane_f64(two, 0) + vgetq_lane_f64(two, 1);
  }

  // The last keys of a level are not followed by others that could be loaded.
  template <typename Keys, typename Key>
  static std::uint32_t FindWith(const FusedLevel<Key>& level, FusedRun run, const FusedQuery& query,
                                const FusedOutput& out) {
    if (std::uint64_t{run.begin} + Keys::kCount > level.size) {
      return Scalar::FindInSmallRun(level, run, query, out);
    }
    return FindInKeys<Keys>(level.keys, run, query, out);
  }
};

}  // namespace

FusedKernel FusedNeon() {
  return {"neon", &SearchFused<Neon>, &SearchFusedTree<Neon>, &SearchFusedChain<Neon>,
          &SearchFusedSample<Neon>};
}

}  // namespace lattice_bpd

#else

namespace lattice_bpd {
FusedKernel FusedNeon() { return {"neon", nullptr, nullptr, nullptr, nullptr}; }
}  // namespace lattice_bpd

#endif
