// The symbols of an LM: the model's token ids and the three special symbols.
#ifndef LATTICE_BPD_LM_VOCABULARY_H_
#define LATTICE_BPD_LM_VOCABULARY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lattice_bpd/base/label.h"
#include "lattice_bpd/lm/word_list.h"

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

  // Bit i % 8 of byte i / 8: whether token id i is none of an ARPA file's words. To the LM those
  // are <unk>, in histories and as events, as in KenLM. Null: none are, or it makes no difference.
  std::shared_ptr<const std::vector<std::uint8_t>> unlisted = nullptr;

  // The word of each token id, vocab_size of them. Null: the LM has none.
  std::shared_ptr<const WordList> words = nullptr;

  std::uint32_t num_symbols() const;
  bool is_token(Symbol symbol) const { return symbol < vocab_size; }
  bool is_unlisted(Symbol symbol) const {
    return unlisted != nullptr && is_token(symbol) &&
           ((*unlisted)[symbol / 8] >> symbol % 8 & 1) != 0;
  }
  // The symbol that the LM has n-grams of for this one.
  Symbol ListedOrUnk(Symbol symbol) const { return is_unlisted(symbol) ? unk : symbol; }
  // Likewise for a token id. Those of 0..vocab_size - 1 are symbols, all others are <unk>: a model
  // of the same tokenizer may have more token ids than the LM.
  Symbol SymbolOf(TokenId id) const {
    const auto symbol = static_cast<Symbol>(id);
    return is_token(symbol) ? ListedOrUnk(symbol) : unk;
  }
};

constexpr std::size_t BytesOfBits(std::size_t num_bits) { return (num_bits + 7) / 8; }

constexpr std::uint32_t kMaxVocabSize = 1u << 21;

// Throws ValueError where vocab_size is 0 or above 2^21, or a special id lies outside it or two
// special ids are the same.
Vocabulary MakeVocabulary(std::uint64_t vocab_size, const SpecialIds& ids);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_VOCABULARY_H_
