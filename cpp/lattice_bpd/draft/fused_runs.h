// Input and output of a search for candidates among the children of a history, and the
// parts of it that need no vectors.
//
// In an anonymous namespace as all fused_*.h that compute (see fused_search.h).
#ifndef LATTICE_BPD_DRAFT_FUSED_RUNS_H_
#define LATTICE_BPD_DRAFT_FUSED_RUNS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lattice_bpd/draft/fused_workspace.h"
#include "lattice_bpd/lm/packed_level.h"

namespace lattice_bpd {
namespace {

// Runs above this many keys are searched block by block.
constexpr std::uint32_t kLargeRun = 2 * kSampleStride - 1;
constexpr std::uint32_t kSampleShift = 5;
static_assert(kSampleStride == 1u << kSampleShift);

// The candidates of a slot, in the layout of the searches.
struct FusedSlot {
  const Symbol* symbols;           // of the lanes; padding is kNoSymbol
  const std::uint16_t* symbols16;  // the same in 16 bits, for levels of 2-byte keys
  const FusedSymbolTable* table;   // the same, if Simd::kUsesTables
  const std::uint64_t* unk_lanes;  // of token ids that are <unk> to the LM; null if there are none
  std::uint32_t num_lanes;         // padded
};

// What to search for: the candidates that the row of a suffix hit.
struct FusedQuery {
  FusedSlot slot;
  const std::uint64_t* lane_bits;  // the suffix row's hits
  std::uint32_t first_hit;         // index of the first of them
};

// Where hits go; each array has capacity for kFusedSpare more entries than hits.
struct FusedOutput {
  std::uint32_t* lane;
  std::uint32_t* node;
  std::uint32_t* suffix_hit;
  std::uint64_t* lane_bits;
};

// The hits of one row, for filling in its values.
struct FusedRowHits {
  const std::uint64_t* lane_bits;
  const std::uint32_t* lanes;
  const double* scores;
  std::uint32_t size;
};

// The hits of all rows, in locals of a loop over rows: a vector store may alias any member, which
// would then be read again for each row.
struct FusedHitIndex {
  const std::uint64_t* lane_bits;
  const std::uint32_t* lanes;
  const std::uint32_t* hits_begin;
  std::uint32_t lane_words;

  // Those of a row, with scores (or masses) out of an array of all hits.
  FusedRowHits Of(std::uint32_t r, const double* scores) const {
    const std::uint32_t begin = hits_begin[r];
    return {lane_bits + std::size_t{r} * lane_words, lanes + begin, scores + begin,
            hits_begin[r + 1] - begin};
  }
};

// Of a row's lanes: the sum of their masses, and the largest weighted mass.
struct FusedMassTotals {
  double sum;
  double best;
};

// Makes the table of at most 16 symbols whose low 16 bits differ; leaves it without a factor where
// none matches soon.
inline void MakeSymbolTable(const Symbol* symbols, std::uint32_t size, FusedSymbolTable* table) {
  constexpr int kTries = 100;  // each succeeds for 16 symbols in about one of seven cases
  table->factor = 0;
  std::uint32_t factor = 0x9e37;
  for (int i = 0; i < kTries; ++i, factor += 0x3c6e) {
    std::uint64_t entries = 0;
    for (std::uint32_t lane = 0; lane < size; ++lane) {
      entries |= std::uint64_t{1} << ((symbols[lane] * factor & 0xffff) >> 10);
    }
    if (__builtin_popcountll(entries) != static_cast<int>(size)) continue;
    table->factor = static_cast<std::uint16_t>(factor);
    std::memset(table->lanes, 0, sizeof table->lanes);
    for (std::uint32_t lane = 0; lane < size; ++lane) {
      const std::uint32_t entry = (symbols[lane] * factor & 0xffff) >> 10;
      table->lanes[entry] = static_cast<std::uint8_t>(lane);
      for (std::uint32_t i = 0; i < 4; ++i) {
        table->bytes[i][lane] = static_cast<std::uint8_t>(symbols[lane] >> 8 * i);
      }
    }
    return;
  }
}

// The lanes first .. last - 1 of 32, as bits; first < 32, last >= first.
inline std::uint32_t LaneRange(std::uint32_t first, std::uint32_t last) {
  const std::uint32_t below_last = last >= 32 ? ~0u : (1u << last) - 1;
  return below_last & (~0u << first);
}

// How many of `size` sorted keys are at most `word`, by binary search. No branch depends on the
// data.
template <typename Key>
std::uint32_t CountAtMost(const Key* keys, std::uint32_t size, Symbol word) {
  const Key* first = keys;
  while (size > 1) {
    const std::uint32_t half = size / 2;
    first = first[half - 1] <= word ? first + half : first;
    size -= half;
  }
  return static_cast<std::uint32_t>(first - keys) + (size == 1 && *first <= word);
}

// What searches read of a level whose keys have this type.
template <typename Key>
struct FusedLevel {
  const Key* keys;
  const Key* samples;
  std::uint64_t size;  // keys

  explicit FusedLevel(const PackedLevel& level)
      : keys(reinterpret_cast<const Key*>(level.keys.data())),
        samples(reinterpret_cast<const Key*>(level.samples.data())),
        size(level.size()) {}
};

// Prefetches the blocks of the lanes of a query; those of four-byte keys are two cache lines.
template <typename Key>
void PrefetchBlocks(const FusedLevel<Key>& level, const FusedQuery& query,
                    const FusedBlock* blocks) {
  for (std::uint32_t word = 0; 64 * word < query.slot.num_lanes; ++word) {
    for (std::uint64_t bits = query.lane_bits[word]; bits != 0; bits &= bits - 1) {
      const auto lane = 64 * word + static_cast<std::uint32_t>(__builtin_ctzll(bits));
      const Key* const block = level.keys + blocks[lane].base;
      __builtin_prefetch(block);
      if (sizeof(Key) == 4) __builtin_prefetch(block + kSampleStride / 2);
    }
  }
}

// For each lane of a query: the block of kSampleStride keys that could have its symbol. Prefetches
// the blocks.
template <typename Key>
void FindBlocksByHalves(const FusedLevel<Key>& level, FusedRun run, const FusedQuery& query,
                        FusedBlock* blocks) {
  const std::uint32_t first = run.begin / kSampleStride;
  const std::uint32_t count = (run.end - 1) / kSampleStride - first;
  for (std::uint32_t lane = 0; lane < query.slot.num_lanes; ++lane) {
    if ((query.lane_bits[lane / 64] >> (lane % 64) & 1) == 0) continue;
    const Symbol word = query.slot.symbols[lane];
    const std::uint32_t base =
        (first + CountAtMost(level.samples + first + 1, count, word)) * kSampleStride;
    blocks[lane] = {base, LaneRange(run.begin > base ? run.begin - base : 0, run.end - base)};
  }
  PrefetchBlocks(level, query, blocks);
}

// Searches for each lane of a query with `find(lane, symbol, &node)`, which returns whether it is
// there.
template <typename Find>
std::uint32_t FindEach(const FusedQuery& query, const FusedOutput& out, const Find& find) {
  std::uint32_t* const lanes = out.lane;
  std::uint32_t* const nodes = out.node;
  std::uint32_t* const suffix_hits = out.suffix_hit;
  const Symbol* const symbols = query.slot.symbols;
  std::uint32_t count = 0;
  std::uint32_t suffix_hit = query.first_hit;
  for (std::uint32_t word = 0; 64 * word < query.slot.num_lanes; ++word) {
    std::uint64_t hit_bits = 0;  // in a register: memory would make each lane wait for the last
    for (std::uint64_t bits = query.lane_bits[word]; bits != 0; bits &= bits - 1) {
      const std::uint32_t lane = 64 * word + static_cast<std::uint32_t>(__builtin_ctzll(bits));
      const std::uint64_t is_hit = find(lane, symbols[lane], &nodes[count]);
      lanes[count] = lane;
      suffix_hits[count] = suffix_hit++;
      hit_bits |= is_hit << (lane % 64);
      count += static_cast<std::uint32_t>(is_hit);
    }
    out.lane_bits[word] = hit_bits;
  }
  return count;
}

// Adds hits of `node`, an n-gram that ends with <unk>, for the lanes that are <unk> to the LM,
// among the `count` hits of other lanes. Returns how many there are then.
inline std::uint32_t AddUnkHits(const FusedQuery& query, std::uint32_t node, std::uint32_t count,
                                const FusedOutput& out) {
  const std::uint32_t num_words = (query.slot.num_lanes + 63) / 64;
  std::uint32_t suffix_hit = query.first_hit;
  std::uint32_t total = 0;
  for (std::uint32_t word = 0; word < num_words; ++word) {
    const std::uint64_t added = query.lane_bits[word] & query.slot.unk_lanes[word];
    suffix_hit += static_cast<std::uint32_t>(__builtin_popcountll(query.lane_bits[word]));
    total += static_cast<std::uint32_t>(__builtin_popcountll(out.lane_bits[word] | added));
  }
  std::uint32_t at = total;
  for (std::uint32_t word = num_words; word-- > 0;) {  // from the last, to move hits in place
    const std::uint64_t added = query.lane_bits[word] & query.slot.unk_lanes[word];
    std::uint64_t bits = query.lane_bits[word];
    while (bits != 0) {
      const auto lane = 63 - static_cast<std::uint32_t>(__builtin_clzll(bits));
      const std::uint64_t bit = std::uint64_t{1} << lane;
      bits ^= bit;
      --suffix_hit;
      const bool was_hit = (out.lane_bits[word] & bit) != 0;
      count -= was_hit;
      if ((added & bit) != 0) {
        --at;
        out.lane[at] = 64 * word + lane;
        out.node[at] = node;
        out.suffix_hit[at] = suffix_hit;
      } else if (was_hit) {
        --at;
        out.lane[at] = out.lane[count];
        out.node[at] = out.node[count];
        out.suffix_hit[at] = out.suffix_hit[count];
      }
    }
    out.lane_bits[word] |= added;
  }
  return total;
}

// The part of a run that is in a block.
inline FusedRun RunIn(FusedBlock block) {
  const auto first = static_cast<std::uint32_t>(__builtin_ctz(block.keys));
  const auto last = 32 - static_cast<std::uint32_t>(__builtin_clz(block.keys));
  return {block.base + first, block.base + last};
}

template <typename Key>
bool FindByHalves(const Key* keys, FusedRun run, Symbol word, std::uint32_t* node) {
  const std::uint32_t count = CountAtMost(keys + run.begin, run.end - run.begin, word);
  *node = run.begin + count - (count != 0);
  return keys[*node] == word;
}

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_RUNS_H_
