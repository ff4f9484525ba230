// Walks a batch of lattices with their contexts, on several threads.
#ifndef LATTICE_BPD_DRAFT_FOR_EACH_LATTICE_H_
#define LATTICE_BPD_DRAFT_FOR_EACH_LATTICE_H_

#include <functional>

#include "lattice_bpd/lattice/lattice_batch.h"
#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

// Contexts of different lengths, concatenated: context b is
// token_ids[offsets[b] .. offsets[b + 1] - 1].
struct ContextsView {
  Span<TokenId> token_ids;
  Span<std::int64_t> offsets;
  bool bos = true;  // <s> precedes each context
};

// Throws ValueError where offsets do not fit so many lattices or the token ids.
void CheckContexts(const ContextsView& contexts, std::size_t batch);

// Context b of contexts that were checked.
Span<TokenId> ContextOfRow(const ContextsView& contexts, std::size_t b);

using VisitLattice =
    std::function<void(std::size_t b, const Sausage& lattice, const LmState& start)>;

// Calls visit(b, lattice, state of its context) for each lattice of a batch, on up to `threads`
// threads (0: every core; fewer where there is too little to do for so many). Throws ValueError
// where contexts and lattices differ in number or a context is out of range, and what visit throws:
// of the lowest row that fails, whatever the number of threads.
void ForEachLattice(const LatticeBatch& lattices, const BackoffLm* lm, const ContextsView& contexts,
                    int threads, const VisitLattice& visit);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FOR_EACH_LATTICE_H_
