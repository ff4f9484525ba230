// An LM with words, asked about words: scores of text, and states that are small.
//
// Words of a text are separated by ASCII white space. A word that the LM does not list is <unk>,
// whose names "<unk>" and "<UNK>" are no words either. Log probabilities are natural logs.
#ifndef LATTICE_BPD_LM_WORD_SCORER_H_
#define LATTICE_BPD_LM_WORD_SCORER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/lm/word_list.h"

namespace lattice_bpd {

// The state of the shortest history that has the same future: of a longer one no n-gram begins with
// the symbols that are dropped, and their backoff weights are 1 (as KenLM's states).
LmState Minimized(const BackoffLm& lm, LmState state);

struct WordScore {
  double log_prob = 0.0;
  std::uint32_t ngram_length = 0;  // of the n-gram that the probability is of
  bool oov = false;
};

// Texts one after the other: text i ends before symbols[ends[i]].
struct SymbolTexts {
  bool bos = true;  // each begins with <s>
  bool eos = true;  // each ends with </s>
  std::vector<Symbol> symbols = {};
  std::vector<std::size_t> ends = {};
};

struct TextTotal {
  double log_prob = 0.0;
  std::int64_t num_words = 0;  // without <s> and </s>
  std::int64_t num_oov = 0;
};

class WordScorer {
 public:
  // An <unk> without a probability of its own gets missing_unk. Words can be asked about only where
  // the LM has some.
  WordScorer(std::shared_ptr<const BackoffLm> lm, double missing_unk);

  const BackoffLm& lm() const { return *lm_; }

  // <unk>'s symbol for a word that the LM does not list. Throws ValueError for an LM without words.
  Symbol SymbolOf(std::string_view word) const;
  bool Contains(std::string_view word) const { return SymbolOf(word) != unk_; }

  LmState Start(bool bos) const { return bos ? begin_ : LmState{}; }

  // What BackoffLm::Query finds, with missing_unk and with a minimized state.
  LmStep Step(const LmState& state, Symbol symbol) const;

  // Scores one symbol after a state, and sets `next` to the state after it; it may be `state`.
  WordScore Score(const LmState& state, Symbol symbol, LmState* next) const;

  // Adds a text of words, or of token ids; those beyond the vocabulary are <unk>. Throws ValueError
  // for negative ones.
  void Add(std::string_view text, SymbolTexts* texts) const;
  void Add(Span<TokenId> token_ids, SymbolTexts* texts) const;

  // Of each text. All texts' lookups go together, as those of ScoreText (text_nodes.h).
  std::vector<TextTotal> Totals(const SymbolTexts& texts) const;

 private:
  void Begin(std::size_t size, SymbolTexts* texts) const;
  void End(SymbolTexts* texts) const;

  std::shared_ptr<const BackoffLm> lm_;
  const WordList* words_;
  Symbol unk_;
  float unk_log_prob_;  // as a unigram
  LmState begin_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_WORD_SCORER_H_
