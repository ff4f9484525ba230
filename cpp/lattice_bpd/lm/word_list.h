// The word of each token id, and the token id of each word.
//
// Words are bytes without ASCII white space and NUL, in UTF-8 by convention: they are compared, not
// decoded.
#ifndef LATTICE_BPD_LM_WORD_LIST_H_
#define LATTICE_BPD_LM_WORD_LIST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

constexpr bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

class WordList {
 public:
  // Each word ends in a line feed. Throws ValueError where a word is empty, has white space or NUL
  // in it, or occurs twice. O(bytes); 12 to 20 bytes for each word beside its own.
  explicit WordList(std::string lines);

  std::size_t size() const { return begins_.size() - 1; }
  const std::string& lines() const { return lines_; }

  std::string_view operator[](std::size_t id) const {
    return std::string_view(lines_).substr(begins_[id], begins_[id + 1] - begins_[id] - 1);
  }

  // The token id of a word, or kNoSymbol.
  Symbol Find(std::string_view word) const {
    const std::uint32_t hash = Hash(word);
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      const Entry entry = table_[at];
      if (entry.id == kNoSymbol) return kNoSymbol;
      if (entry.hash == hash && (*this)[entry.id] == word) return entry.id;
    }
  }

 private:
  struct Entry {
    std::uint32_t hash = 0;
    Symbol id = kNoSymbol;
  };

  static std::uint32_t Hash(std::string_view word);

  std::string lines_;
  std::vector<std::uint32_t> begins_;  // one more entry
  std::vector<Entry> table_;           // open addressing, linear probing
  std::size_t mask_ = 0;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_WORD_LIST_H_
