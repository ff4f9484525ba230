// A corpus of token-id sequences, checked, with the sentence boundaries that counting adds.
#ifndef LATTICE_BPD_TRAIN_TOKEN_SEQUENCES_H_
#define LATTICE_BPD_TRAIN_TOKEN_SEQUENCES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/lm/vocabulary.h"

namespace lattice_bpd {

// Borrowed arrays: sequence i is token_ids[offsets[i]] .. token_ids[offsets[i + 1] - 1].
//
// Each sequence is read as <s> w1 .. wm </s>. A first token that is bos_id, or a last one that is
// eos_id, is that boundary and is not added again; elsewhere these ids are ordinary tokens. A
// sequence without tokens is read as <s> </s>.
//
// A sequence too long for one batch comes in pieces:
//
//   batch 1   ... d e f g h i          held_back = 3: n-grams that begin at g, h, i are left to
//   batch 2         g h i j k </s>     batch 2, which repeats them and continues
struct TokenSequences {
  Span<TokenId> token_ids;
  Span<std::int64_t> offsets;
  bool continues = false;     // sequence 0 began in an earlier batch: no <s>
  std::size_t held_back = 0;  // above 0: the last sequence continues after this batch: no </s>, and
                              // its last tokens, order - 1 or more, only follow others here

  std::size_t size() const { return offsets.size() - 1; }
  std::size_t num_begun() const { return size() - (continues ? 1 : 0); }
  std::size_t num_ended() const { return size() - (held_back > 0 ? 1 : 0); }
  bool begins(std::size_t i) const { return i > 0 || !continues; }
  bool ends(std::size_t i) const { return i + 1 < size() || held_back == 0; }
};

// w1 .. wm of one sequence, without its boundaries.
inline Span<TokenId> WordsOfSequence(const TokenSequences& sequences, const Vocabulary& vocabulary,
                                     std::size_t index) {
  std::size_t begin = static_cast<std::size_t>(sequences.offsets[index]);
  std::size_t end = static_cast<std::size_t>(sequences.offsets[index + 1]);
  const auto is = [&](std::size_t i, Symbol symbol) {
    return static_cast<Symbol>(sequences.token_ids[i]) == symbol;
  };
  if (sequences.begins(index) && begin < end && is(begin, vocabulary.bos)) ++begin;
  if (sequences.ends(index) && begin < end && is(end - 1, vocabulary.eos)) --end;
  return sequences.token_ids.Slice(begin, end);
}

// Throws ValueError where offsets do not rise from 0 to the number of token ids, or a token id lies
// outside 0 .. vocab_size - 1 (the message names its index and sequence).
void CheckSequences(const TokenSequences& sequences, const Vocabulary& vocabulary);

// How often each symbol occurs as an event: every w and every final </s>, but no first <s> and
// nothing held back. One entry for each symbol. The sequences must have been checked.
std::vector<std::uint64_t> CountEvents(const TokenSequences& sequences,
                                       const Vocabulary& vocabulary);

// Throws ValueError where sequences with these events have no w.
void CheckHasText(const std::vector<std::uint64_t>& events, std::uint64_t num_sequences);

// All three: CheckSequences, CountEvents, CheckHasText.
std::vector<std::uint64_t> CheckAndCountEvents(const TokenSequences& sequences,
                                               const Vocabulary& vocabulary);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_TOKEN_SEQUENCES_H_
