// Drafts of a mixture for a batch of texts.
#ifndef LATTICE_BPD_MIXTURE_MIXTURE_SEARCH_H_
#define LATTICE_BPD_MIXTURE_MIXTURE_SEARCH_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/mixture/mixture_text.h"

namespace lattice_bpd {

// One tree for each text, on up to `threads` threads. With `costs` all trees are cut to one size,
// that of the greatest ratio of expected tokens to costs[size], since one call reads them all.
struct BatchLimits {
  int max_nodes = 0;
  bool is_chain = false;
  Span<std::int32_t> max_depths;
  Span<double> costs;
  const std::vector<AllowTokens>* allow = nullptr;  // of each text, or null
  const std::vector<KnownNoise>* noise = nullptr;   // likewise
};
std::vector<PrefixTree> SearchMixtures(const std::vector<MixtureText*>& texts,
                                       const std::vector<HeadCandidates>& heads,
                                       const BatchLimits& limits, int threads);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_MIXTURE_MIXTURE_SEARCH_H_
