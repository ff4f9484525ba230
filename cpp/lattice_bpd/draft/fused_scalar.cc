// The fused search in plain C++: runs everywhere, and defines what the vector builds must do.
#include "lattice_bpd/draft/fused_kernels.h"
#include "lattice_bpd/draft/fused_search.h"

namespace lattice_bpd {
namespace {

struct Scalar {
  static void Prefetch(const void* at) { __builtin_prefetch(at); }

  // Looks for a query's candidates among the keys of a run (it may be empty). Writes lane, node
  // and suffix hit of each one that is there, by lane, sets its bit and asks for its record.
  // Returns how many there are.
  static std::uint32_t FindHits(const PackedLevel& level, FusedRun run, const FusedQuery& query,
                                const FusedOutput& out) {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < query.num_hits; ++i) {
      const std::uint32_t lane = query.lanes[i];
      const std::uint32_t node = level.Find(run.begin, run.end, query.symbols[lane]);
      out.lane[count] = lane;
      out.node[count] = node;
      out.suffix_hit[count] = query.first_hit + i;
      count += node != kNoNode;
    }
    MarkHits(level, out, count);
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
