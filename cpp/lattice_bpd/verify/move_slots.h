// Moving a few slots of a KV cache, in all of its layers.
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

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_MOVE_SLOTS_H_
