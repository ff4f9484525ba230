// The fused search in plain C++: runs everywhere, and defines what the vector builds must do.
#include "lattice_bpd/draft/fused_kernels.h"
#include "lattice_bpd/draft/fused_search.h"

namespace lattice_bpd {
namespace {

struct Scalar {
  static void Prefetch(const void* at) { __builtin_prefetch(at); }

  // Looks for the candidates of hits[first .. last - 1] among the keys of a run (not empty):
  // symbols[hit.lane] is the key wanted. Writes {lane, node found, index of the hit} for each one
  // that is there to `out`, which has room for one more than can be found, and returns how many.
  static std::uint32_t FindHits(const PackedLevel& level, FusedRun run, const Symbol* symbols,
                                const FusedHit* hits, std::uint32_t first, std::uint32_t last,
                                FusedHit* out) {
    std::uint32_t count = 0;
    for (std::uint32_t h = first; h < last; ++h) {
      const std::uint32_t node = level.Find(run.begin, run.end, symbols[hits[h].lane]);
      out[count] = {hits[h].lane, node, h};
      count += node != kNoNode;
    }
    return count;
  }

  // out = in + constant for `size` lanes, a multiple of 8; in and out may be the same. Returns the
  // largest of the sums whose lane's bit in skipped_lanes is not set, -inf where there is none.
  static double AddConstant(const double* in, double constant, const std::uint64_t* skipped_lanes,
                            std::uint32_t size, double* out) {
    double best = kMinusInfinity;
    for (std::uint32_t i = 0; i < size; ++i) {
      out[i] = in[i] + constant;
      if ((skipped_lanes[i / 64] >> (i % 64) & 1) == 0) best = std::max(best, out[i]);
    }
    return best;
  }

  // Calls visit(i), i rising, for each of the first `size` values that is `least` or more. Up to
  // the next multiple of 8 there may be more values, which do not count.
  template <typename Visit>
  static void ForEachAtLeast(const double* values, std::uint32_t size, double least,
                             const Visit& visit) {
    for (std::uint32_t i = 0; i < size; ++i) {
      if (values[i] >= least) visit(i);
    }
  }
};

void Run(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
         const DraftOptions& options, FusedWorkspace* workspace, DraftList* out) {
  FusedSearch<Scalar>(sausage, lm, start, options, workspace).Run(out);
}

}  // namespace

RunFused FusedScalar() { return &Run; }

}  // namespace lattice_bpd
