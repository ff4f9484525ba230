// From n-grams in any order to a trie that the LM can use.
#ifndef LATTICE_BPD_LM_TRIE_BUILDER_H_
#define LATTICE_BPD_LM_TRIE_BUILDER_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "lattice_bpd/lm/trie.h"

namespace lattice_bpd {

// The n-grams of one order as a list: entry i is symbols[i * length .. (i + 1) * length - 1].
struct NgramList {
  int length = 0;
  std::vector<Symbol> symbols;
  std::vector<float> log_prob;
  std::vector<float> backoff;         // 0 where an n-gram has none
  std::vector<std::uint64_t> source;  // where each came from (a line number), for messages

  std::size_t size() const { return log_prob.size(); }
  const Symbol* ngram(std::size_t i) const { return symbols.data() + i * length; }
};

// Two entries that are the same n-gram, or an n-gram whose history is no entry. `source` is the
// entry's own mark; the caller turns it into its file and line.
class NgramListError : public std::runtime_error {
 public:
  NgramListError(std::uint64_t source, const std::string& message)
      : std::runtime_error(message), source_(source) {}
  std::uint64_t source() const { return source_; }

 private:
  std::uint64_t source_;
};

// Sorts each list (lists[0]: one unigram for each symbol) and links histories to extensions.
// A suffix that the level below lacks is inserted with its backed-off probability and no backoff
// weight, which changes no probability: the search relies on suffix closure.
// Cost: sorting; O(1) extra for lists that are sorted and closed already.
Trie BuildTrie(const Vocabulary& vocabulary, std::vector<NgramList> lists);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_TRIE_BUILDER_H_
