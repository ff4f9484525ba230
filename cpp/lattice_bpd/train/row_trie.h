// A trie of some of an LM's n-grams that are given as rows, for machines that hold only a part.
//
// The part is: all n-grams whose last but one symbol is one of a few. For a context h = g c of this
// part, whatever its order, both all stored hw and all stored h'w lie in it, since h' ends in c
// too. So discounting, backoff weights and removal costs, which depend on nothing else, come out of
// the part bit for bit as they do of the whole LM, and the code for the whole LM computes them.
//
//   rows            a c w, a c x, b c w, c w, c x       (c is the symbol of the part)
//   nodes added     a c, b c                            (the path to a row, with count 0)
//
// The added nodes have no rows; what comes out for them means nothing.
#ifndef LATTICE_BPD_TRAIN_ROW_TRIE_H_
#define LATTICE_BPD_TRAIN_ROW_TRIE_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/estimate_options.h"
#include "lattice_bpd/train/good_turing.h"
#include "lattice_bpd/train/ngram_counts.h"

namespace lattice_bpd {

// The rows of one order, in rising order: row i is symbols[i * length .. (i + 1) * length - 1].
struct NgramRows {
  int length = 0;
  Span<Symbol> symbols;

  std::size_t size() const { return symbols.size() / static_cast<std::size_t>(length); }
  const Symbol* ngram(std::size_t i) const { return symbols.data() + i * length; }
};
using RowsByOrder = std::vector<NgramRows>;  // [0]: order 2

// The shape of the trie, and where the rows are in it.
struct RowTrie {
  std::vector<std::vector<Symbol>> word;                // as in Trie
  std::vector<std::vector<std::uint32_t>> child_begin;  // as in Trie
  std::vector<std::vector<std::uint32_t>> node;         // [m][i]: of row i of order m + 1
  std::vector<std::vector<std::uint32_t>> context;      // [m][i]: of its first m symbols

  int order() const { return static_cast<int>(word.size()); }
};

// Throws ValueError where rows are not in rising order or hold symbols outside the vocabulary.
// O(symbols in rows).
RowTrie LinkRows(const Vocabulary& vocabulary, const RowsByOrder& rows);

using LogProbsByOrder = std::vector<Span<float>>;
using ProbsByOrder = std::vector<Span<double>>;
using CountsByOrder = std::vector<Span<std::uint64_t>>;

// An LM trie with these log probabilities, without backoff weights; added nodes have probability 0.
Trie TrieOfRows(const Vocabulary& vocabulary, const RowTrie& shape, Span<float> unigrams,
                const LogProbsByOrder& log_probs);

// ln P of each row. unigrams: counts and context counts of the whole corpus; count_of_counts too.
// context_counts: C(h) of each row hw. min_counts have been applied; the smoothing is none that
// counts continuations. Throws ValueError for a bad katz_k.
std::vector<std::vector<float>> EstimateRows(const Vocabulary& vocabulary, const RowsByOrder& rows,
                                             CountLevel unigrams, const CountsByOrder& counts,
                                             const CountsByOrder& context_counts,
                                             const std::vector<CountOfCounts>& count_of_counts,
                                             const EstimateOptions& options);

// p(h) of each row hw in the LM (prune_scores.h: NgramProbs). Here the part is another one: all
// n-grams that begin with one of a few pairs of symbols.
std::vector<std::vector<double>> ContextProbsOfRows(const Trie& trie, const RowTrie& shape);

// What the removal of each row costs (prune_scores.h); context_probs: p(h) of each row.
std::vector<std::vector<double>> RemovalCostsOfRows(const Trie& trie, const RowTrie& shape,
                                                    const ProbsByOrder& context_probs);

// Backoff weights of the contexts of the rows: [m] has those of order m + 1.
struct ContextBackoffs {
  std::vector<Symbol> symbols;  // (backoff.size(), m + 1), sorted
  std::vector<float> backoff;
};
std::vector<ContextBackoffs> BackoffsOfRows(Trie trie, const RowTrie& shape,
                                            const RowsByOrder& rows);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_ROW_TRIE_H_
