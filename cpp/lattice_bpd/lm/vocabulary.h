// The symbols of an LM: the model's token ids and the three special symbols.
#ifndef LATTICE_BPD_LM_VOCABULARY_H_
#define LATTICE_BPD_LM_VOCABULARY_H_

#include <optional>

#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

// Special symbols that are named token ids of the model; those left out get symbols of their own
// after the token ids.
struct SpecialIds {
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> unk;
};

// Symbols 0 .. num_symbols() - 1. <s>, </s> and <unk> always have a symbol, though an LM may give
// <unk> no probability of its own.
struct Vocabulary {
  std::uint32_t vocab_size = 0;
  Symbol bos = kNoSymbol;
  Symbol eos = kNoSymbol;
  Symbol unk = kNoSymbol;

  std::uint32_t num_symbols() const;
  bool is_token(Symbol symbol) const { return symbol < vocab_size; }
};

constexpr std::uint32_t kMaxVocabSize = 1u << 21;

// Throws ValueError where vocab_size is 0 or above 2^21, or a special id lies outside it or two
// special ids are the same.
Vocabulary MakeVocabulary(std::uint64_t vocab_size, const SpecialIds& ids);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_VOCABULARY_H_
