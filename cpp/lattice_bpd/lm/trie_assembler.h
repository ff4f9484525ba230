// A trie from n-grams that arrive in order, without holding them as a list.
#ifndef LATTICE_BPD_LM_TRIE_ASSEMBLER_H_
#define LATTICE_BPD_LM_TRIE_ASSEMBLER_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/lm/trie.h"

namespace lattice_bpd {

// Memory: the trie, which is 16 bytes for each n-gram below the highest order and 8 there.
class TrieAssembler {
 public:
  // unigrams: ln P of every symbol. Throws ValueError where there are more or fewer.
  TrieAssembler(const Vocabulary& vocabulary, Span<float> unigrams);

  // Adds n-grams of one order: symbols (backoff.size(), length). All of one order come before those
  // of the next, in rising order; of order 1 only the backoff is taken. log_prob and backoff of
  // one n-gram have the same index.
  // Throws ValueError for another order of things, or an n-gram whose prefix did not come.
  // O(length * log(children)) for each n-gram.
  void Add(int length, Span<Symbol> symbols, Span<float> log_prob, Span<float> backoff);

  // Ends with the highest order that came.
  Trie Finish();

 private:
  void AddOne(const Symbol* ngram, float log_prob, float backoff);
  void BeginLevel(int level);
  void CloseContextsUpTo(std::uint32_t context);
  std::uint32_t FindContext(const Symbol* ngram);

  Trie trie_;
  std::uint32_t next_context_ = 0;   // of the level below: its children begin here or later
  std::vector<Symbol> last_;         // the n-gram that came last
  std::vector<std::uint32_t> path_;  // its nodes; [m] for the first m + 1 symbols
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_TRIE_ASSEMBLER_H_
