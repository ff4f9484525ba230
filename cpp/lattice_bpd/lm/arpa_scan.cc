#include "lattice_bpd/lm/arpa_scan.h"

#include <algorithm>

namespace lattice_bpd {

ArpaLines::ArpaLines(const MappedFile& file)
    : text_(reinterpret_cast<const char*>(file.data()), file.size()), path_(file.path()) {
  if (text_.substr(0, 3) == "\xef\xbb\xbf") text_.remove_prefix(3);
}

bool ArpaLines::Next(std::string_view* line) {
  if (at_ >= text_.size()) return false;
  interrupts_.Count();
  const std::size_t end = std::min(text_.find('\n', at_), text_.size());
  *line = text_.substr(at_, end - at_);
  while (!line->empty() && IsArpaSpace(line->back())) line->remove_suffix(1);
  at_ = end + 1;
  ++number_;
  return true;
}

bool IsUtf16(std::string_view text) {
  if (text.size() < 4) return false;
  const std::string_view mark = text.substr(0, 2);
  if (mark == "\xff\xfe" || mark == "\xfe\xff") return true;
  const bool low = text[0] == 0, high = text[1] == 0;
  return low != high && low == (text[2] == 0) && high == (text[3] == 0);
}

std::string Quoted(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  if (text.size() <= kLongest) return StrCat('"', text, '"');
  std::size_t end = kLongest;
  const auto continues = [&] { return (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80; };
  while (end > kLongest - 3 && continues()) --end;
  return StrCat('"', text.substr(0, end), "..\" (", text.size(), " bytes)");
}

int SplitFields(std::string_view line, std::string_view* fields) {
  int count = 0;
  std::size_t at = 0;
  for (;;) {
    while (at < line.size() && IsArpaSpace(line[at])) ++at;
    if (at == line.size()) return count;
    if (count == kMaxFields) return kMaxFields + 1;
    const std::size_t begin = at;
    while (at < line.size() && !IsArpaSpace(line[at])) ++at;
    fields[count++] = line.substr(begin, at - begin);
  }
}

}  // namespace lattice_bpd
