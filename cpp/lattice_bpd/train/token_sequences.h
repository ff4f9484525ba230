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
struct TokenSequences {
  Span<TokenId> token_ids;
  Span<std::int64_t> offsets;

  std::size_t size() const { return offsets.size() - 1; }
};

// w1 .. wm of one sequence, without its boundaries.
inline Span<TokenId> WordsOfSequence(const TokenSequences& sequences, const Vocabulary& vocabulary,
                                     std::size_t index) {
  std::size_t begin = static_cast<std::size_t>(sequences.offsets[index]);
  std::size_t end = static_cast<std::size_t>(sequences.offsets[index + 1]);
  const auto is = [&](std::size_t i, Symbol symbol) {
    return static_cast<Symbol>(sequences.token_ids[i]) == symbol;
  };
  if (begin < end && is(begin, vocabulary.bos)) ++begin;
  if (begin < end && is(end - 1, vocabulary.eos)) --end;
  return sequences.token_ids.Slice(begin, end);
}

// How often each symbol occurs as an event: every w and every final </s>, but no first <s>.
// One entry for each symbol.
//
// Throws ValueError where offsets do not rise from 0 to the number of token ids, a token id lies
// outside 0 .. vocab_size - 1 (the message names its index and sequence), or no sequence has a w.
std::vector<std::uint64_t> CountEvents(const TokenSequences& sequences,
                                       const Vocabulary& vocabulary);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_TOKEN_SEQUENCES_H_
