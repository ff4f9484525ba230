// How much probability each context of a trie leaves to its backoff, level by level.
#ifndef LATTICE_BPD_TRAIN_CONTEXT_MASS_H_
#define LATTICE_BPD_TRAIN_CONTEXT_MASS_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/lm/trie.h"

namespace lattice_bpd {

// Whether the LM gives a symbol a probability of its own (unseen vocabulary and <s> have none).
inline bool HasMass(float unigram_log_prob) { return unigram_log_prob > kNeverLogProb; }

std::uint64_t CountWordsWithMass(const Trie& trie);

// Of a context h with stored n-grams hw, and h' the suffix of h:
struct ContextMass {
  double left;        // 1 - sum P(w | h), at least 1e-9
  double lower_left;  // 1 - sum P(w | h'), above 0
};

// Walks the levels upwards. At level m (1 or more) it knows the n-grams of level m, whose contexts
// are on level m - 1. The trie's log probabilities must not change meanwhile. As OpenGrm NGram
// computes it, each 1 - sum is 1 - exp(-x) with x = -ln(sum) raised to at least 1e-9. One
// difference: where the lower sum comes within 1e-5 of 1 (there: reaches 1), what is left is summed
// from what h' gives the words not stored at h, since rounding would make up much of 1 - sum. 8
// bytes for each n-gram of the level below and 4 for each of three levels.
class ContextMasses {
 public:
  ContextMasses(int num_threads, const Trie& trie);

  // To the next level. Throws ValueError where a stored n-gram's suffix is not stored.
  void Advance();

  int level() const { return level_; }
  const std::vector<double>& below() const { return below_; }  // probabilities of the level below
  const std::vector<std::uint32_t>& links() const { return links_[level_]; }  // suffixes

  // Whether a context stores every word with mass, so that it has none left to back off to.
  bool StoresEveryWord(std::uint32_t context) const;

  // For a context that stores something.
  ContextMass Of(std::uint32_t context) const;

 private:
  std::vector<double> ProbsOfLevel() const;
  double MassNotStored(std::uint32_t context) const;
  std::vector<double> MassLeftOfLevel(const std::vector<double>& prob) const;

  const int num_threads_;
  const Trie& trie_;
  const std::uint64_t num_words_;
  int level_ = 0;
  std::vector<double> below_;
  std::vector<double> left_below_;  // of the contexts whose n-grams are on the level below
  std::vector<std::vector<std::uint32_t>>
      links_;  // [m]: suffixes of level m's nodes; of two levels
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_CONTEXT_MASS_H_
