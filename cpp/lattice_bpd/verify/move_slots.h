// Writing, moving and copying a few slots of KV caches.
#ifndef LATTICE_BPD_VERIFY_MOVE_SLOTS_H_
#define LATTICE_BPD_VERIFY_MOVE_SLOTS_H_

#include <cstddef>
#include <vector>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

// Keys or values of all layers: (layers, rows, heads, slots, bytes of a slot).
struct SlotBuffer {
  unsigned char* data = nullptr;
  std::size_t layers = 0;
  std::size_t rows = 0;
  std::size_t heads = 0;
  std::size_t slots = 0;
  std::size_t slot_bytes = 0;
};

// Copies slots to starts[b], starts[b] + 1, .. in every layer and head of row b: those of
// sources[b], as they were before. Rows after the last one of `sources` stay. Throws ValueError,
// and copies nothing, for slots out of range or other numbers of rows.
void MoveSlots(const SlotBuffer& buffer, const std::vector<std::size_t>& starts,
               const std::vector<std::vector<std::size_t>>& sources);

// Slots begin .. end - 1 of a row, for another one.
struct SlotCopy {
  std::size_t from = 0;
  std::size_t to = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Makes copies one after the other, in every layer and head. Throws ValueError, and copies nothing,
// for rows or slots that the buffer lacks.
void CopySlots(const SlotBuffer& buffer, const std::vector<SlotCopy>& copies);

// Slots of one layer; strides in bytes.
struct SlotRows {
  unsigned char* data = nullptr;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t head_stride = 0;
  std::ptrdiff_t slot_stride = 0;
};

// Sizes of new slots: (rows, heads, slots, bytes of a slot).
struct SlotShape {
  std::size_t rows = 0;
  std::size_t heads = 0;
  std::size_t slots = 0;
  std::size_t slot_bytes = 0;
};

// Copies new slots of row b to starts[b], starts[b] + 1, .. of rows with `capacity` slots. Throws
// ValueError, and copies nothing, where they do not fit.
void WriteSlots(const SlotRows& from, const SlotShape& shape, const SlotRows& to,
                std::size_t capacity, Span<std::int64_t> starts);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_VERIFY_MOVE_SLOTS_H_
