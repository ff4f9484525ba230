#include "lattice_bpd/draft/ancestor_mask.h"

#include <algorithm>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {

void WriteAncestorMask(Span<std::int32_t> parents, std::size_t size, std::uint8_t* mask) {
  if (parents.size() > size) {
    throw ValueError(
        StrCat("found ", parents.size(), " nodes for a mask of ", size, "; expected no more"));
  }
  std::fill(mask, mask + size * size, std::uint8_t{0});
  for (std::size_t i = 0; i < size; ++i) mask[i * size + i] = 1;
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const std::int32_t parent = parents[i];
    if (parent < -1 || parent >= static_cast<std::int32_t>(i)) {
      throw ValueError(
          StrCat("node ", i, " has parent ", parent, "; expected -1 or a node before it"));
    }
    if (parent < 0) continue;
    const std::uint8_t* above = mask + static_cast<std::size_t>(parent) * size;
    std::copy(above, above + i, mask + i * size);  // entries after i are 0 in both rows
  }
}

}  // namespace lattice_bpd
