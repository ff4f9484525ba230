// The ancestor mask of a tree, for tree attention.
#ifndef LATTICE_BPD_DRAFT_ANCESTOR_MASK_H_
#define LATTICE_BPD_DRAFT_ANCESTOR_MASK_H_

#include <cstdint>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

// mask[i * size + k] = 1 where node k is node i itself or one of its ancestors, else 0. `parents`
// holds the node before each, -1 for none; from the number of nodes up to `size`, entries attend to
// themselves alone. Throws ValueError where a parent does not precede its child, or for more nodes
// than `size`.
void WriteAncestorMask(Span<std::int32_t> parents, std::size_t size, std::uint8_t* mask);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_ANCESTOR_MASK_H_
