#include "lattice_bpd/lm/arpa_scan.h"

#include <algorithm>

namespace lattice_bpd {

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
