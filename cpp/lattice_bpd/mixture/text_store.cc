#include "lattice_bpd/mixture/text_store.h"

#include <mutex>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr Symbol kSeparator = kNoSymbol - 1;

}  // namespace

void CheckToken(std::int64_t token, std::uint32_t vocab_size, const char* where) {
  if (token < 0 || token >= static_cast<std::int64_t>(vocab_size)) {
    throw ValueError(StrCat(where, ": token id ", token, "; expected 0..", vocab_size - 1));
  }
}

TextStore::TextStore(std::size_t max_tokens)
    : max_tokens_(max_tokens), counts_(kMaxOrder), predictions_(max_tokens) {
  if (max_tokens <= kMaxOrder) {
    throw ValueError(
        StrCat("TextStore: max_tokens is ", max_tokens, "; expected ", kMaxOrder + 1, " or more"));
  }
}

void TextStore::Add(Span<TokenId> text) {
  for (const TokenId token : text) CheckToken(token, kMaxVocabSize, "TextStore");
  const std::unique_lock lock(mutex_);
  const auto append = [this](Symbol symbol) {
    counts_.Append(symbol);
    if (counts_.text().size() > max_tokens_) counts_.RemoveFirst();
  };
  for (const TokenId token : text) append(static_cast<Symbol>(token));
  append(kSeparator);
}

std::vector<TokenId> TextStore::Tokens() const {
  const std::shared_lock lock(mutex_);
  std::vector<TokenId> tokens;
  for (const Symbol symbol : counts_.text()) {
    tokens.push_back(symbol == kSeparator ? kPadToken : static_cast<TokenId>(symbol));
  }
  return tokens;
}

}  // namespace lattice_bpd
