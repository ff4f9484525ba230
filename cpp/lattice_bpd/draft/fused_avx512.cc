// The fused search with AVX-512 (F, BW, DQ, VL): 32 two-byte keys a compare, 8 doubles an add.
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

// From here on only our own code is compiled for AVX-512; what the headers above define stays as
// it is, since the linker may share it with the other builds.
#pragma GCC push_options
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC bug 105593, in immintrin.h
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt,lzcnt")

#include "lattice_bpd/draft/fused_search.h"

namespace lattice_bpd {
namespace {

// The lanes first .. last - 1 of 32, as bits; first < 32, last >= first.
std::uint32_t LaneRange(std::uint32_t first, std::uint32_t last) {
  const std::uint32_t below_last = last >= 32 ? ~0u : (1u << last) - 1;
  return below_last & (~0u << first);
}

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
  std::uint32_t AtMost(Symbol word) const {
    return _mm512_mask_cmple_epu16_mask(lanes, keys, _mm512_set1_epi16(static_cast<short>(word)));
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
  std::uint32_t AtMost(Symbol word) const {
    const __m512i wanted = _mm512_set1_epi32(static_cast<int>(word));
    return lanes & (_mm512_cmple_epu32_mask(low, wanted) |
                    static_cast<std::uint32_t>(_mm512_cmple_epu32_mask(high, wanted)) << 16);
  }
};

// For each word: of the sorted samples first .. last - 1, the first one above it. Each block of
// samples is loaded once and counted through: no branch depends on the data.
template <typename Keys>
void UpperBounds(const typename Keys::Key* samples, std::uint32_t first, std::uint32_t last,
                 const Symbol* words, std::uint32_t num_words, std::uint32_t* bounds) {
  for (std::uint32_t c = 0; c < num_words; ++c) bounds[c] = first;
  for (std::uint32_t i = first; i < last; i += 32) {
    const Keys block(samples + i, LaneRange(0, last - i));
    for (std::uint32_t c = 0; c < num_words; ++c) {
      bounds[c] += static_cast<std::uint32_t>(__builtin_popcount(block.AtMost(words[c])));
    }
  }
}

// A run of 8 two-byte keys or fewer and 16 lanes or fewer, the usual case: each key against all
// lanes at once, and the lanes that match put side by side. No branch depends on the data.
std::uint32_t FindInTinyRun(const std::uint16_t* keys, FusedRun run, const FusedQuery& query,
                            const FusedOutput& out) {
  // Lanes of padding hold 0xffff, which no key of this form is; missing keys hold it too, and
  // match padding only, which lane_bits leave out.
  const __m256i lanes16 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(query.symbols16));
  const auto which = static_cast<__mmask8>((1u << (run.end - run.begin)) - 1);
  const __m256i loaded =
      _mm256_castsi128_si256(_mm_mask_loadu_epi16(_mm_set1_epi16(-1), which, keys + run.begin));
  __mmask16 found = 0;
  __m512i node = _mm512_set1_epi32(static_cast<int>(run.begin));
  const __m512i first_node = node;
  for (int i = 0; i < 8; ++i) {
    const __m256i key = _mm256_permutexvar_epi16(_mm256_set1_epi16(static_cast<short>(i)), loaded);
    const __mmask16 equal = _mm256_cmpeq_epi16_mask(lanes16, key);
    node = _mm512_mask_add_epi32(node, equal, first_node, _mm512_set1_epi32(i));
    found = static_cast<__mmask16>(found | equal);
  }
  const auto asked = static_cast<__mmask16>(*query.lane_bits);
  found = static_cast<__mmask16>(found & asked);
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i suffix_hit = _mm512_add_epi32(_mm512_maskz_expand_epi32(asked, iota),
                                              _mm512_set1_epi32(static_cast<int>(query.first_hit)));
  _mm512_storeu_si512(out.lane, _mm512_maskz_compress_epi32(found, iota));
  _mm512_storeu_si512(out.node, _mm512_maskz_compress_epi32(found, node));
  _mm512_storeu_si512(out.suffix_hit, _mm512_maskz_compress_epi32(found, suffix_hit));
  *out.lane_bits = found;
  return static_cast<std::uint32_t>(__builtin_popcount(found));
}

// A run of 64 keys or fewer: load them once, compare each candidate.
template <typename Keys>
std::uint32_t FindInShortRun(const typename Keys::Key* keys, FusedRun run, const FusedQuery& query,
                             const FusedOutput& out) {
  const std::uint32_t size = run.end - run.begin;
  const Keys low(keys + run.begin, LaneRange(0, size));
  const Keys high(keys + run.begin + 32, size > 32 ? LaneRange(0, size - 32) : 0);
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < query.num_hits; ++i) {
    const std::uint32_t lane = query.lanes[i];
    const Symbol word = query.symbols[lane];
    std::uint64_t equal = low.Equal(word);
    if (size > 32) equal |= static_cast<std::uint64_t>(high.Equal(word)) << 32;
    out.lane[count] = lane;
    out.node[count] = run.begin + static_cast<std::uint32_t>(_tzcnt_u64(equal));
    out.suffix_hit[count] = query.first_hit + i;
    count += equal != 0;
  }
  return count;
}

// A long run: first the block of every candidate, by samples, then the blocks, which have been
// asked for meanwhile.
template <typename Keys>
std::uint32_t FindInLongRun(const PackedLevel& level, FusedRun run, const FusedQuery& query,
                            const FusedOutput& out) {
  using Key = typename Keys::Key;
  const Key* keys = reinterpret_cast<const Key*>(level.keys.data());
  const Key* samples = reinterpret_cast<const Key*>(level.samples.data());
  const std::uint32_t first_sample = run.begin / kSampleStride + 1;
  const std::uint32_t last_sample = (run.end - 1) / kSampleStride + 1;
  constexpr std::uint32_t kGroup = 32;
  Symbol words[kGroup];
  std::uint32_t bounds[kGroup];
  std::uint32_t count = 0;
  for (std::uint32_t group = 0; group < query.num_hits; group += kGroup) {
    const std::uint32_t size = std::min(kGroup, query.num_hits - group);
    for (std::uint32_t c = 0; c < size; ++c) words[c] = query.symbols[query.lanes[group + c]];
    UpperBounds<Keys>(samples, first_sample, last_sample, words, size, bounds);
    for (std::uint32_t c = 0; c < size; ++c) {
      __builtin_prefetch(keys + std::size_t{bounds[c] - 1} * kSampleStride);
    }
    for (std::uint32_t c = 0; c < size; ++c) {
      const std::uint32_t base = (bounds[c] - 1) * kSampleStride;
      const Keys block(keys + base,
                       LaneRange(run.begin > base ? run.begin - base : 0, run.end - base));
      const std::uint32_t equal = block.Equal(words[c]);
      out.lane[count] = query.lanes[group + c];
      out.node[count] = base + _tzcnt_u32(equal);
      out.suffix_hit[count] = query.first_hit + group + c;
      count += equal != 0;
    }
  }
  return count;
}

template <typename Keys>
std::uint32_t FindInRun(const PackedLevel& level, FusedRun run, const FusedQuery& query,
                        const FusedOutput& out) {
  const auto* keys = reinterpret_cast<const typename Keys::Key*>(level.keys.data());
  const std::uint32_t count = run.end - run.begin > 64
                                  ? FindInLongRun<Keys>(level, run, query, out)
                                  : FindInShortRun<Keys>(keys, run, query, out);
  MarkHits(level, out, count);
  return count;
}

struct Avx512 {
  static void Prefetch(const void* at) { __builtin_prefetch(at); }

  static std::uint32_t FindHits(const PackedLevel& level, FusedRun run, const FusedQuery& query,
                                const FusedOutput& out) {
    if (level.form.key_bytes != 2) return FindInRun<Keys32>(level, run, query, out);
    if (run.end - run.begin <= 8 && query.num_lanes <= 16) {
      return FindInTinyRun(reinterpret_cast<const std::uint16_t*>(level.keys.data()), run, query,
                           out);
    }
    return FindInRun<Keys16>(level, run, query, out);
  }

  static double AddConstant(const double* in, double constant, const std::uint64_t* skipped_lanes,
                            std::uint32_t size, double* out) {
    const __m512d added = _mm512_set1_pd(constant);
    __m512d best = _mm512_set1_pd(kMinusInfinity);
    for (std::uint32_t i = 0; i < size; i += 8) {
      const __m512d sum = _mm512_add_pd(_mm512_loadu_pd(in + i), added);
      _mm512_storeu_pd(out + i, sum);
      const auto counted = static_cast<__mmask8>(~(skipped_lanes[i / 64] >> (i % 64)));
      best = _mm512_mask_max_pd(best, counted, best, sum);
    }
    return _mm512_reduce_max_pd(best);
  }

  template <typename Visit>
  static void ForEachAtLeast(const double* values, std::uint32_t size, double least,
                             const Visit& visit) {
    const __m512d bound = _mm512_set1_pd(least);
    for (std::uint32_t i = 0; i < size; i += 8) {
      std::uint32_t lanes = _mm512_cmp_pd_mask(_mm512_loadu_pd(values + i), bound, _CMP_GE_OQ);
      if (size - i < 8) lanes &= (1u << (size - i)) - 1;
      for (; lanes != 0; lanes &= lanes - 1) {
        visit(i + static_cast<std::uint32_t>(__builtin_ctz(lanes)));
      }
    }
  }
};

void Run(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
         const DraftOptions& options, FusedWorkspace* workspace, DraftList* out) {
  FusedSearch<Avx512>(sausage, lm, start, options, workspace).Run(out);
}

}  // namespace
}  // namespace lattice_bpd

#pragma GCC diagnostic pop
#pragma GCC pop_options

namespace lattice_bpd {

RunFused FusedAvx512() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("bmi2");
  return has ? &Run : nullptr;
}

}  // namespace lattice_bpd

#else

namespace lattice_bpd {
RunFused FusedAvx512() { return nullptr; }
}  // namespace lattice_bpd

#endif
