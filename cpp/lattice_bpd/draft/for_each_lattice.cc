#include "lattice_bpd/draft/for_each_lattice.h"

#include <algorithm>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"

namespace lattice_bpd {
namespace {

// About 80 microseconds of search: what it may take to wake a core that sleeps.
constexpr std::size_t kCandidatesPerThread = 256;

LmState StateOfRow(const BackoffLm* lm, const ContextsView& contexts, std::size_t b) {
  return lm == nullptr ? LmState{} : lm->StateOfContext(ContextOfRow(contexts, b), contexts.bos);
}

}  // namespace

void CheckContexts(const ContextsView& contexts, std::size_t batch) {
  if (contexts.offsets.size() != batch + 1) {
    throw ValueError(StrCat("contexts: ", contexts.offsets.size(), " offsets for ", batch,
                            " lattices; expected one more than lattices"));
  }
  for (std::size_t b = 0; b < batch; ++b) {
    const std::int64_t begin = contexts.offsets[b];
    const std::int64_t end = contexts.offsets[b + 1];
    if (begin < 0 || end < begin || static_cast<std::size_t>(end) > contexts.token_ids.size()) {
      throw ValueError(StrCat("contexts: offsets ", begin, "..", end, " of row ", b,
                              " do not fit the ", contexts.token_ids.size(), " token ids"));
    }
  }
}

Span<TokenId> ContextOfRow(const ContextsView& contexts, std::size_t b) {
  return contexts.token_ids.Slice(static_cast<std::size_t>(contexts.offsets[b]),
                                  static_cast<std::size_t>(contexts.offsets[b + 1]));
}

void ForEachLattice(const LatticeBatch& lattices, const BackoffLm* lm, const ContextsView& contexts,
                    int threads, const VisitLattice& visit) {
  CheckContexts(contexts, lattices.size());
  const std::size_t useful = lattices.num_candidates() / kCandidatesPerThread;
  const int num_threads =
      static_cast<int>(std::clamp<std::size_t>(useful, 1, ResolveThreads(threads)));
  RunParallel(lattices.size(), num_threads, [&](std::size_t b) {
    thread_local Sausage scratch;
    visit(b, lattices.Get(b, &scratch), StateOfRow(lm, contexts, b));
  });
}

}  // namespace lattice_bpd
