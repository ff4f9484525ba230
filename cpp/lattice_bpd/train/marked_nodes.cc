#include "lattice_bpd/train/marked_nodes.h"

namespace lattice_bpd {

void MarkParts(const Marks& stays, const ChildLists& lists, Span<std::uint32_t> links,
               Marks* below) {
  for (std::size_t context = 0; context < lists.num_contexts(); ++context) {
    for (std::uint32_t i = lists.child_begin[context]; i < lists.child_begin[context + 1]; ++i) {
      if (!stays[i]) continue;
      (*below)[context] = 1;
      (*below)[links[i]] = 1;
    }
  }
}

void RenumberChildren(const Marks& children_stay, std::vector<std::uint32_t>* child_begin) {
  std::uint32_t kept = 0;
  std::size_t node = 0;
  for (std::uint32_t& begin : *child_begin) {
    for (; node < begin; ++node) kept += children_stay[node];
    begin = kept;
  }
}

void KeepMarkedBounds(const Marks& stays, std::vector<std::uint32_t>* child_begin) {
  Marks stays_and_end = stays;
  stays_and_end.push_back(1);
  KeepMarked(stays_and_end, child_begin);
}

}  // namespace lattice_bpd
