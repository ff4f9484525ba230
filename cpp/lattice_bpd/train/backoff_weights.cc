#include "lattice_bpd/train/backoff_weights.h"

#include <cmath>

#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/base/vector_memory.h"
#include "lattice_bpd/train/context_mass.h"

namespace lattice_bpd {
namespace {

// ln backoff weight of a context on the level below that of `masses`.
float WeightOf(const ContextMasses& masses, std::uint32_t context, std::uint32_t num_stored) {
  if (num_stored == 0) return 0.0f;
  if (masses.StoresEveryWord(context)) return kNoBackoff;
  const ContextMass mass = masses.Of(context);
  return static_cast<float>(std::log(mass.left / mass.lower_left));
}

}  // namespace

void AssignBackoffWeights(int num_threads, Trie* trie) {
  ContextMasses masses(num_threads, *trie);
  for (int level = 1; level < trie->order(); ++level) {
    masses.Advance();
    TrieLevel& contexts = trie->levels[level - 1];
    FreeMemory(&contexts.backoff);
    ResizeInHugePages(contexts.size(), &contexts.backoff);
    contexts.backoff_error = 0.0f;
    const std::vector<std::uint32_t>& begin = contexts.child_begin;
    RunOverContexts(begin, num_threads, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        contexts.backoff[i] =
            WeightOf(masses, static_cast<std::uint32_t>(i), begin[i + 1] - begin[i]);
      }
    });
  }
}

}  // namespace lattice_bpd
