#include "lattice_bpd/verify/move_slots.h"

#include <algorithm>
#include <cstring>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

using Sources = std::vector<std::vector<std::size_t>>;

void CheckSources(const SlotBuffer& buffer, const std::vector<std::size_t>& starts,
                  const Sources& sources) {
  if (sources.size() != starts.size() || sources.size() > buffer.rows) {
    throw ValueError(StrCat("found slots of ", sources.size(), " rows to move, and ", starts.size(),
                            " starts, in a cache of ", buffer.rows, "; expected some for each"));
  }
  for (std::size_t row = 0; row < sources.size(); ++row) {
    const std::vector<std::size_t>& slots = sources[row];
    const bool fits = slots.size() <= buffer.slots && starts[row] <= buffer.slots - slots.size();
    const bool is_there = std::all_of(slots.begin(), slots.end(),
                                      [&](std::size_t slot) { return slot < buffer.slots; });
    if (!fits || !is_there) {
      throw ValueError(StrCat("found ", slots.size(), " slots to move to ", starts[row],
                              " in a cache of ", buffer.slots, "; expected slots of it"));
    }
  }
}

}  // namespace

void MoveSlots(const SlotBuffer& buffer, const std::vector<std::size_t>& starts,
               const Sources& sources) {
  CheckSources(buffer, starts, sources);
  const std::size_t bytes = buffer.slot_bytes, of_head = buffer.slots * bytes;
  std::vector<unsigned char> moved;
  for (std::size_t layer = 0; layer < buffer.layers; ++layer) {
    for (std::size_t row = 0; row < sources.size(); ++row) {
      const std::vector<std::size_t>& slots = sources[row];
      unsigned char* head = buffer.data + (layer * buffer.rows + row) * buffer.heads * of_head;
      moved.resize(slots.size() * bytes);
      for (std::size_t number = 0; number < buffer.heads; ++number, head += of_head) {
        for (std::size_t i = 0; i < slots.size(); ++i) {
          std::memcpy(moved.data() + i * bytes, head + slots[i] * bytes, bytes);
        }
        std::memcpy(head + starts[row] * bytes, moved.data(), moved.size());
      }
    }
  }
}

void CopySlots(const SlotBuffer& buffer, const std::vector<SlotCopy>& copies) {
  for (const SlotCopy& one : copies) {
    if (one.from >= buffer.rows || one.to >= buffer.rows || one.begin > one.end ||
        one.end > buffer.slots) {
      throw ValueError(StrCat("found slots ", one.begin, " to ", one.end, " of row ", one.from,
                              " to copy to row ", one.to, " of a cache of ", buffer.rows, " x ",
                              buffer.slots, "; expected rows and slots of it"));
    }
  }
  const std::size_t bytes = buffer.slot_bytes, of_row = buffer.heads * buffer.slots * bytes;
  for (std::size_t layer = 0; layer < buffer.layers; ++layer) {
    unsigned char* const rows = buffer.data + layer * buffer.rows * of_row;
    for (const SlotCopy& one : copies) {
      if (one.from == one.to) continue;
      for (std::size_t head = 0; head < buffer.heads; ++head) {
        const std::size_t first = (head * buffer.slots + one.begin) * bytes;
        std::memcpy(rows + one.to * of_row + first, rows + one.from * of_row + first,
                    (one.end - one.begin) * bytes);
      }
    }
  }
}

void WriteSlots(const SlotRows& from, const SlotShape& shape, const SlotRows& to,
                std::size_t capacity, Span<std::int64_t> starts) {
  const bool fits =
      starts.size() == shape.rows && shape.slots <= capacity &&
      std::all_of(starts.begin(), starts.end(), [&](std::int64_t start) {
        return start >= 0 && static_cast<std::size_t>(start) <= capacity - shape.slots;
      });
  if (!fits) {
    throw ValueError(StrCat("found ", shape.slots, " new slots of ", shape.rows, " rows and ",
                            starts.size(), " starts, in a cache of ", capacity,
                            " slots; expected a start for each row, and room after it"));
  }
  const bool is_run = from.slot_stride == static_cast<std::ptrdiff_t>(shape.slot_bytes) &&
                      to.slot_stride == from.slot_stride;
  const std::size_t run = is_run ? shape.slots : 1;  // slots of a copy
  for (std::size_t row = 0; row < shape.rows; ++row) {
    for (std::size_t head = 0; head < shape.heads; ++head) {
      const auto r = static_cast<std::ptrdiff_t>(row), h = static_cast<std::ptrdiff_t>(head);
      const unsigned char* source = from.data + r * from.row_stride + h * from.head_stride;
      unsigned char* target =
          to.data + r * to.row_stride + h * to.head_stride + starts[row] * to.slot_stride;
      for (std::size_t slot = 0; slot < shape.slots; slot += run) {
        std::memcpy(target, source, run * shape.slot_bytes);
        source += from.slot_stride;
        target += to.slot_stride;
      }
    }
  }
}

}  // namespace lattice_bpd
