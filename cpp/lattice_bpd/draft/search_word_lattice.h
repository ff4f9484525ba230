// The exact search of word lattices with an LM: p best word sequences, and the rescored lattice.
//
//   cost(path) = sum of its arcs' costs + its final cost - alpha * ln P(its words </s>)
//
// Forward over pairs of lattice state and LM state, in the lattice's topological order, each pair
// once; backward for the cost of the best way from each pair to the end. A sequence of words has
// one LM state, so all paths with the same words so far are one search item: the pairs that they
// lead to, each with its cheapest path. Items are taken best first by the exact cost of their best
// completion, so the p best sequences come out in order, each once, at the cost of its best path,
// after at most p items of each length where costs differ (Mohri and Riley 2002, "An efficient
// algorithm for the n-best-strings problem"; here with words determinized as they are needed).
//
// Ties are broken by the smaller word number at the first position where sequences differ, a
// sequence before one that it begins. Scores are on the score grid, so a tie is a tie.
//
// Cost: O(arcs * LM states per lattice state) queries; 40 bytes for each pair and 24 for each of
// its arcs.
#ifndef LATTICE_BPD_DRAFT_SEARCH_WORD_LATTICE_H_
#define LATTICE_BPD_DRAFT_SEARCH_WORD_LATTICE_H_

#include <cstdint>
#include <vector>

#include "lattice_bpd/lattice/word_lattice.h"
#include "lattice_bpd/lm/word_scorer.h"

namespace lattice_bpd {

constexpr std::uint64_t kMaxPairArcs = std::uint64_t{1} << 28;

struct WordSearchOptions {
  double alpha = 1.0;
  bool bos = true;
  bool eos = true;  // whether </s> is scored at the end of a path
  int num_paths = 1;
  bool rescored_lattice = false;
};

// Paths by rising cost: arcs[begins[i]] .. arcs[begins[i + 1] - 1] are those of path i.
struct WordPaths {
  std::vector<std::int32_t> begins;
  std::vector<std::int32_t> arcs;        // indices in the arrays, epsilon arcs too
  std::vector<std::int32_t> end_states;  // of the lattice
  std::vector<double> costs;             // as searched
  std::vector<double> log_probs;         // ln P of the words
};

// The pairs that are on a path, 0 the start: the lattice with the LM's log probabilities.
struct RescoredArrays {
  std::vector<std::int32_t> states;   // the lattice state of each pair
  std::vector<double> end_log_probs;  // ln P(</s>) there; 0 where it is not scored
  std::vector<std::int32_t> sources;
  std::vector<std::int32_t> targets;
  std::vector<std::int32_t> arcs;  // indices in the arrays
  std::vector<double> log_probs;
};

struct WordSearchResult {
  WordPaths paths;
  RescoredArrays rescored;  // empty unless it is wanted
};

// Throws ValueError where symbols are out of range or pairs have more than kMaxPairArcs arcs.
WordSearchResult SearchWordLattice(const WordLattice& lattice, const WordScorer& scorer,
                                   const WordSearchOptions& options);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_SEARCH_WORD_LATTICE_H_
