// What differs between instruction sets (fused_search.h), in plain C++: what each operation must
// do. Builds with vectors derive from it and replace what they do better.
//
// In an anonymous namespace as all fused_*.h that compute (see fused_search.h).
#ifndef LATTICE_BPD_DRAFT_FUSED_SCALAR_H_
#define LATTICE_BPD_DRAFT_FUSED_SCALAR_H_

#include <algorithm>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/fused_exponentials.h"
#include "lattice_bpd/draft/fused_runs.h"

namespace lattice_bpd {
namespace {

struct Scalar {
  static void Prefetch(const void* at) { __builtin_prefetch(at); }

  static constexpr bool kUsesTables = false;  // FusedSlot::table

  // Runs of this many keys or fewer go to FindInTinyRun; 0 where a slot has no such search.
  static std::uint32_t TinyRun(const FusedSymbolTable&) { return 0; }
  template <typename Key>
  static std::uint32_t FindInTinyRun(const FusedLevel<Key>& level, FusedRun run,
                                     const FusedQuery& query, const FusedOutput& out) {
    return FindInSmallRun(level, run, query, out);
  }

  // Of the histories that the hits first .. first + size - 1 make: appends those to search to the
  // lists, by size of their runs. A history can have hits only where its suffix has, so that its
  // target is first_row or later. Chosen by arithmetic: compilers make branches of conditions, and
  // processors cannot guess these.
  static void ListRuns(const FusedRun* runs, const std::uint32_t* targets, std::uint32_t first,
                       std::uint32_t size, std::uint32_t first_row, std::uint32_t tiny_run,
                       FusedRunLists* lists) {
    FusedRunLists at = *lists;
    for (std::uint32_t i = 0; i < size; ++i) {
      const std::uint32_t num_keys = runs[i].end - runs[i].begin;
      const std::uint32_t above_none =
          std::uint32_t{num_keys != 0} & std::uint32_t{targets[i] >= first_row};
      const std::uint32_t above_tiny = above_none & std::uint32_t{num_keys > tiny_run};
      const std::uint32_t above_small = above_none & std::uint32_t{num_keys > kLargeRun};
      *at.tiny = *at.small = *at.large = first + i;
      at.tiny += above_none - above_tiny;
      at.small += above_tiny - above_small;
      at.large += above_small;
    }
    *lists = at;
  }

  // Searches for a query's candidates among the keys of a run, at most kLargeRun, at least one.
  // Writes lane, node and suffix hit of each one that is there, by lane, and sets its bit. Returns
  // how many there are.
  template <typename Key>
  static std::uint32_t FindInSmallRun(const FusedLevel<Key>& level, FusedRun run,
                                      const FusedQuery& query, const FusedOutput& out) {
    return FindAmong(level, query, out, [&](std::uint32_t) { return run; });
  }

  // The same for a run above kLargeRun in two steps, since each waits for memory. The first one
  // says which block of kSampleStride keys each lane's symbol could be in and prefetches it.
  template <typename Key>
  static void FindBlocks(const FusedLevel<Key>& level, FusedRun run, const FusedQuery& query,
                         FusedBlock* blocks) {
    FindBlocksByHalves(level, run, query, blocks);
  }
  template <typename Key>
  static std::uint32_t FindInBlocks(const FusedLevel<Key>& level, const FusedQuery& query,
                                    const FusedBlock* blocks, const FusedOutput& out) {
    return FindAmong(level, query, out, [&](std::uint32_t lane) { return RunIn(blocks[lane]); });
  }

  // scores[i] = heads[lanes[i]] + alpha * ln P of nodes[i], on the grid.
  static void ScoreHits(const PackedLevel& level, double alpha, const double* heads,
                        const std::uint32_t* nodes, const std::uint32_t* lanes, std::uint32_t size,
                        double* scores) {
    for (std::uint32_t i = 0; i < size; ++i) {
      scores[i] = heads[lanes[i]] + ToScoreGrid(alpha * level.LogProb(nodes[i]));
    }
  }

  // Of nodes as histories: runs[i], the children; adds alpha * ln backoff, on the grid, to
  // constants[i].
  static void ReadHistories(const PackedLevel& level, double alpha, const std::uint32_t* nodes,
                            std::uint32_t size, FusedRun* runs, double* constants) {
    for (std::uint32_t i = 0; i < size; ++i) {
      const auto [begin, end] = level.Children(nodes[i]);
      runs[i] = {begin, end};
      constants[i] += ToScoreGrid(alpha * level.Backoff(nodes[i]));
    }
  }

  // A row's values: of lanes without a hit the suffix's plus `added`, of hits their own scores.
  // `size` is a multiple of 8; the two arrays may be the same. Returns the largest.
  static double FillRow(const double* suffix_values, double added, const FusedRowHits& hits,
                        std::uint32_t size, double* values) {
    for (std::uint32_t i = 0; i < size; ++i) values[i] = suffix_values[i] + added;
    for (std::uint32_t i = 0; i < hits.size; ++i) values[hits.lanes[i]] = hits.scores[i];
    double best = values[0];
    for (std::uint32_t i = 1; i < size; ++i) best = std::max(best, values[i]);
    return best;
  }

  // The same with masses: suffix_masses times `factor`, and those of hits in their place. Returns
  // their sum, added up as `Sum` (fused_exponentials.h) does.
  static double FillMasses(const double* suffix_masses, double factor, const FusedRowHits& hits,
                           std::uint32_t size, double* masses) {
    for (std::uint32_t i = 0; i < size; ++i) masses[i] = suffix_masses[i] * factor;
    for (std::uint32_t i = 0; i < hits.size; ++i) masses[hits.lanes[i]] = hits.scores[i];
    return Sum(masses, size);
  }

  // The same with a second array of masses after the first one, which is weighted: `masses` and
  // `suffix_masses` are (2, size), and `hit_weighted` has the second of hits.
  static FusedMassTotals FillMassPairs(const double* suffix_masses, double factor,
                                       const FusedRowHits& hits, const double* hit_weighted,
                                       std::uint32_t size, double* masses) {
    const double sum = FillMasses(suffix_masses, factor, hits, size, masses);
    double* weighted = masses + size;
    FillMasses(suffix_masses + size, factor, {hits.lane_bits, hits.lanes, hit_weighted, hits.size},
               size, weighted);
    double best = weighted[0];
    for (std::uint32_t i = 1; i < size; ++i) best = std::max(best, weighted[i]);
    return {sum, best};
  }

  // values[i] += constants[i] + table[indices[i]].
  static void AddGathered(const double* constants, const double* table,
                          const std::uint32_t* indices, std::uint32_t size, double* values) {
    for (std::uint32_t i = 0; i < size; ++i) values[i] += constants[i] + table[indices[i]];
  }

  // out[i] = values[i] * table[indices[i]].
  static void MultiplyGathered(const double* values, const double* table,
                               const std::uint32_t* indices, std::uint32_t size, double* out) {
    for (std::uint32_t i = 0; i < size; ++i) out[i] = values[i] * table[indices[i]];
  }

  // Of the first `size` values: those that are `least` or more with `added`, and their indices.
  // Returns how many there are. Up to the next multiple of 8 there may be more values, which do
  // not count.
  static std::uint32_t AtLeast(const double* values, double added, std::uint32_t size, double least,
                               double* sums, std::uint32_t* indices) {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < size; ++i) {
      sums[count] = values[i] + added;
      indices[count] = i;
      count += values[i] + added >= least;
    }
    return count;
  }

  static std::uint32_t CountAbove(const double* values, std::uint32_t size, double bound) {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < size; ++i) count += values[i] > bound;
    return count;
  }

 private:
  template <typename Key, typename RunOf>
  static std::uint32_t FindAmong(const FusedLevel<Key>& level, const FusedQuery& query,
                                 const FusedOutput& out, const RunOf& run_of) {
    return FindEach(query, out, [&](std::uint32_t lane, Symbol word, std::uint32_t* node) {
      return FindByHalves(level.keys, run_of(lane), word, node);
    });
  }
};

}  // namespace
}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FUSED_SCALAR_H_
