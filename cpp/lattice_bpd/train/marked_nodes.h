// Removes nodes of a trie, of counts or of probabilities, so that it stays closed: pruning marks
// the nodes to keep, adds their histories and suffixes, and compacts level by level.
#ifndef LATTICE_BPD_TRAIN_MARKED_NODES_H_
#define LATTICE_BPD_TRAIN_MARKED_NODES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lattice_bpd/lm/suffix_links.h"

namespace lattice_bpd {

using Marks = std::vector<std::uint8_t>;  // one for each node of a level: 1 stays, 0 goes

// Marks the prefix (on the level below) of each node that stays, and its suffix. From the highest
// level down, this closes the marks. `links`: the suffixes of the level's nodes. O(nodes).
void MarkParts(const Marks& stays, const ChildLists& lists, Span<std::uint32_t> links,
               Marks* below);

// child_begin of a level (whose own nodes are not compacted yet) for the children that stay.
void RenumberChildren(const Marks& children_stay, std::vector<std::uint32_t>* child_begin);

// Compacts child_begin itself, which has an entry more than the level has nodes.
void KeepMarkedBounds(const Marks& stays, std::vector<std::uint32_t>* child_begin);

template <typename T>
void KeepMarked(const Marks& stays, std::vector<T>* values) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < values->size(); ++i) {
    if (stays[i]) (*values)[kept++] = (*values)[i];
  }
  values->resize(kept);
  values->shrink_to_fit();
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_MARKED_NODES_H_
