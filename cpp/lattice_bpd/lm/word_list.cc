#include "lattice_bpd/lm/word_list.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {

WordList::WordList(std::string lines) : lines_(std::move(lines)) {
  if (lines_.size() >= std::numeric_limits<std::uint32_t>::max()) {
    throw ValueError(StrCat("words: ", lines_.size(), " bytes; expected less than 4 GiB"));
  }
  if (!lines_.empty() && lines_.back() != '\n') {
    throw ValueError("words: the last one has no line feed after it");
  }
  begins_.push_back(0);
  for (std::size_t at = 0; at < lines_.size(); ++at) {
    const char c = lines_[at];
    if (c == '\n' && at > begins_.back())
      begins_.push_back(static_cast<std::uint32_t>(at) + 1);
    else if (IsSpace(c) || c == '\0') {
      throw ValueError(StrCat("words: the word of token id ", size(),
                              " is empty, or has white space or NUL in it; expected one word"));
    }
  }
  std::size_t slots = 2;
  while (slots < 2 * size()) slots *= 2;
  table_.resize(slots);
  mask_ = slots - 1;
  for (Symbol id = 0; id < size(); ++id) {
    const std::string_view word = (*this)[id];
    if (const Symbol other = Find(word); other != kNoSymbol) {
      throw ValueError(StrCat("words: token ids ", other, " and ", id, " have the same word \"",
                              std::string(word), "\"; each word needs one token id"));
    }
    const std::uint32_t hash = Hash(word);
    std::size_t at = hash & mask_;
    while (table_[at].id != kNoSymbol) at = (at + 1) & mask_;
    table_[at] = {hash, id};
  }
}

std::uint32_t WordList::Hash(std::string_view word) {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
  std::uint64_t hash = word.size() * kMultiplier;
  const char* at = word.data();
  for (std::size_t left = word.size(); left > 0;) {
    const std::size_t count = std::min<std::size_t>(left, 8);
    std::uint64_t part = 0;
    if (count == 8) {
      std::memcpy(&part, at, 8);
    } else {  // without a call for so few bytes
      for (std::size_t i = 0; i < count; ++i) {
        part |= std::uint64_t{static_cast<unsigned char>(at[i])} << 8 * i;
      }
    }
    hash = (hash ^ part) * kMultiplier;
    hash ^= hash >> 32;
    at += count;
    left -= count;
  }
  return static_cast<std::uint32_t>(hash * kMultiplier >> 32);
}

}  // namespace lattice_bpd
