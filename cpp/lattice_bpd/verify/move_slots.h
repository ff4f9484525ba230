// Moving and copying a few slots of KV caches, in all of their layers.
#ifndef LATTICE_BPD_VERIFY_MOVE_SLOTS_H_
#define LATTICE_BPD_VERIFY_MOVE_SLOTS_H_

#include <cstddef>
#include <vector>

namespace lattice_bpd {

// Keys or values of all layers: (layers, batch, heads, slots, bytes of a slot).
struct SlotBuffer {
  unsigned char* data = nullptr;
  std::size_t layers = 0;
  std::size_t batch = 0;
  std::size_t heads = 0;
  std::size_t slots = 0;
  std::size_t slot_bytes = 0;
};

// Copies slots to `start`, `start` + 1, .. in every layer and head: of sequence b those of
// sources[b], as they were before. Throws ValueError, and copies nothing, for slots out of range or
// another number of sequences.
void MoveSlots(const SlotBuffer& buffer, std::size_t start,
               const std::vector<std::vector<std::size_t>>& sources);

// Copies slots start .. start + count - 1 of row rows[r] to row first_row + r of another buffer,
// for each r. Throws ValueError, and copies nothing, where buffers differ in more than batch and
// slots, and for rows or slots that they lack.
void CopySlots(const SlotBuffer& from, const std::vector<std::size_t>& rows, const SlotBuffer& to,
               std::size_t first_row, std::size_t start, std::size_t count);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_MOVE_SLOTS_H_
