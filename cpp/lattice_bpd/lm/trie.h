// A backoff LM while it is being built: a forward trie, one level for each n-gram order.
//
// Level m (0-based) holds the (m+1)-grams, sorted lexicographically by their symbols from left to
// right, so that the extensions of node i of level m are the nodes
// child_begin[i] .. child_begin[i + 1] - 1 of level m + 1, sorted by word:
//
//   level 0   a        b        c            one node for each symbol, node i = symbol i
//             |\       |
//   level 1   a b  a c b a                   word = b, c, a; child_begin[a] = 0, [b] = 2, [c] = 3
//
// Trainers and the ARPA reader fill one; BackoffLm (backoff_lm.h) packs it for search and for
// the file. The invariants that BackoffLm needs are checked by ValidateTrie.
#ifndef LATTICE_BPD_LM_TRIE_H_
#define LATTICE_BPD_LM_TRIE_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/lm/vocabulary.h"

namespace lattice_bpd {

constexpr int kMaxOrder = 6;

// Natural log probability of a symbol that the LM never gives on its own account: <s>, and <unk>
// where the training text has none. KenLM and SRILM write log10 -99 for it.
constexpr float kNeverLogProb = -99.0f * 2.302585093f;

// Cost (negative natural log) of vocabulary that the training text lacks: paper 001, appendix D.
constexpr float kUnseenCost = 1000.0f;

struct TrieLevel {
  std::vector<Symbol> word;                // last symbol of each n-gram; empty on level 0
  std::vector<float> log_prob;             // ln P(word | history)
  std::vector<float> backoff;              // ln backoff weight; empty on the highest level
  std::vector<std::uint32_t> child_begin;  // size() + 1 entries; empty on the highest level

  // The most that quantizing (quantize.h) changed any of the numbers above; 0 where they are exact.
  float log_prob_error = 0.0f;
  float backoff_error = 0.0f;

  std::size_t size() const { return log_prob.size(); }
};

struct Trie {
  Vocabulary vocabulary;
  std::vector<TrieLevel> levels;  // levels[0] has num_symbols() nodes

  int order() const { return static_cast<int>(levels.size()); }
};

// Throws ValueError where sizes disagree, children are out of range or not strictly sorted, a
// log probability is positive or not finite, or a backoff is not finite. That every n-gram has its
// suffix one level below (suffix closure, which the search relies on) is checked by LinkSuffixes.
// Cost: one pass.
void ValidateTrie(const Trie& trie);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_TRIE_H_
