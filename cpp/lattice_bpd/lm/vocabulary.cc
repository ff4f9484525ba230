#include "lattice_bpd/lm/vocabulary.h"

#include <algorithm>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

Symbol NamedOrNext(const char* name, std::optional<TokenId> id, std::uint32_t vocab_size,
                   Symbol* next) {
  if (!id) return (*next)++;
  if (*id < 0 || static_cast<std::uint32_t>(*id) >= vocab_size) {
    throw ValueError(StrCat("vocabulary: ", name, " is ", *id, "; expected a token id in 0..",
                            vocab_size - 1, ", or none for a symbol outside the vocabulary"));
  }
  return static_cast<Symbol>(*id);
}

}  // namespace

std::uint32_t Vocabulary::num_symbols() const {
  return std::max({vocab_size, bos + 1, eos + 1, unk + 1});
}

Vocabulary MakeVocabulary(std::uint64_t vocab_size, const SpecialIds& ids) {
  if (vocab_size == 0 || vocab_size > kMaxVocabSize) {
    throw ValueError(
        StrCat("vocabulary: vocab_size is ", vocab_size, "; expected 1..", kMaxVocabSize));
  }
  Vocabulary vocabulary;
  vocabulary.vocab_size = static_cast<std::uint32_t>(vocab_size);
  Symbol next = vocabulary.vocab_size;
  vocabulary.bos = NamedOrNext("bos_id", ids.bos, vocabulary.vocab_size, &next);
  vocabulary.eos = NamedOrNext("eos_id", ids.eos, vocabulary.vocab_size, &next);
  vocabulary.unk = NamedOrNext("unk_id", ids.unk, vocabulary.vocab_size, &next);
  if (vocabulary.unk == vocabulary.bos || vocabulary.unk == vocabulary.eos) {
    throw ValueError(StrCat("vocabulary: unk_id is ", vocabulary.unk,
                            ", which is bos_id or eos_id too; give it an id of its own"));
  }
  return vocabulary;
}

}  // namespace lattice_bpd
