// Next tokens by the counts of a text: a cache LM (Kuhn and De Mori 1990).
#ifndef LATTICE_BPD_MIXTURE_TEXT_SUCCESSORS_H_
#define LATTICE_BPD_MIXTURE_TEXT_SUCCESSORS_H_

#include <cstdint>

#include "lattice_bpd/lm/context_trie.h"
#include "lattice_bpd/mixture/gates.h"
#include "lattice_bpd/mixture/lm_successors.h"

namespace lattice_bpd {

// The tokens that followed the suffixes of a history, longest suffix first, at most kMaxSuccessors:
//
//   P_m(b) = (1 - l_m) P_(m-1)(b) + l_m c(g b) / c(g),   l_m = c(g) / (c(g) + d(g)),   P_0 = 0
//
// for the suffix g of m tokens, which c(g) tokens followed, d(g) different ones (Witten and Bell
// 1991). Of each suffix the tokens seen last are considered. Fills out[0 .. returned - 1] and
// `match`.
int FindTextSuccessors(const ContextTrie& text, const ContextState& state, Successor* out,
                       SourceMatch* match);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_MIXTURE_TEXT_SUCCESSORS_H_
