// The text of an ARPA file as lines, fields and numbers; what they mean is arpa_reader.cc's.
#ifndef LATTICE_BPD_LM_ARPA_SCAN_H_
#define LATTICE_BPD_LM_ARPA_SCAN_H_

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/mapped_file.h"
#include "lattice_bpd/lm/trie.h"

namespace lattice_bpd {

constexpr int kMaxFields = kMaxOrder + 2;  // log probability, words, backoff

inline bool IsArpaSpace(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Lines of a mapped text, with their numbers.
class ArpaLines {
 public:
  // `file` must outlive this. A UTF-8 byte order mark at its start is skipped.
  explicit ArpaLines(const MappedFile& file);

  // The next line without its end and the white space before that; false after the last.
  bool Next(std::string_view* line);

  std::string_view text() const { return text_; }
  std::uint64_t number() const { return number_; }
  std::uint64_t bytes_left() const { return at_ < text_.size() ? text_.size() - at_ : 0; }

  template <typename... Parts>
  [[noreturn]] void Fail(std::uint64_t number, const Parts&... parts) const {
    throw FormatError(StrCat(path_, ":", number, ": ", parts...));
  }

 private:
  std::string_view text_;
  std::string path_;
  std::size_t at_ = 0;
  std::uint64_t number_ = 0;
  InterruptCounter interrupts_;
};

// Splits at white space into fields[0 .. kMaxFields - 1] and returns how many there
// are, kMaxFields + 1 for more.
int SplitFields(std::string_view line, std::string_view* fields);

// Whether a text is UTF-16: it begins with a byte order mark, or with two ASCII characters.
bool IsUtf16(std::string_view text);

// A word or line of a file for an error message: in quotes, cut after 60 bytes at the end of a
// UTF-8 character.
std::string Quoted(std::string_view text);

// Whether all of `text` is a number; it may begin with "+".
template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), *value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_ARPA_SCAN_H_
