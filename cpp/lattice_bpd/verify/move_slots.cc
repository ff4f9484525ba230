#include "lattice_bpd/verify/move_slots.h"

#include <algorithm>
#include <cstring>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

using Sources = std::vector<std::vector<std::size_t>>;

void CheckSources(const SlotBuffer& buffer, std::size_t start, const Sources& sources) {
  if (sources.size() != buffer.batch) {
    throw ValueError(StrCat("found slots of ", sources.size(), " sequences to move in a cache of ",
                            buffer.batch, "; expected some for each"));
  }
  for (const std::vector<std::size_t>& slots : sources) {
    const bool fits = slots.size() <= buffer.slots && start <= buffer.slots - slots.size();
    const bool is_there = std::all_of(slots.begin(), slots.end(),
                                      [&](std::size_t slot) { return slot < buffer.slots; });
    if (!fits || !is_there) {
      throw ValueError(StrCat("found ", slots.size(), " slots to move to ", start,
                              " in a cache of ", buffer.slots, "; expected slots of it"));
    }
  }
}

}  // namespace

void MoveSlots(const SlotBuffer& buffer, std::size_t start, const Sources& sources) {
  CheckSources(buffer, start, sources);
  const std::size_t bytes = buffer.slot_bytes;
  std::vector<unsigned char> moved;
  unsigned char* row = buffer.data;  // the slots of one head
  for (std::size_t layer = 0; layer < buffer.layers; ++layer) {
    for (const std::vector<std::size_t>& slots : sources) {
      moved.resize(slots.size() * bytes);
      for (std::size_t head = 0; head < buffer.heads; ++head, row += buffer.slots * bytes) {
        for (std::size_t i = 0; i < slots.size(); ++i) {
          std::memcpy(moved.data() + i * bytes, row + slots[i] * bytes, bytes);
        }
        std::memcpy(row + start * bytes, moved.data(), moved.size());
      }
    }
  }
}

void CopySlots(const SlotBuffer& from, const std::vector<std::size_t>& rows, const SlotBuffer& to,
               std::size_t first_row, std::size_t start, std::size_t count) {
  const std::size_t slots = std::min(from.slots, to.slots), bytes = from.slot_bytes;
  const bool alike = from.layers == to.layers && from.heads == to.heads && bytes == to.slot_bytes;
  const bool fits =
      count <= slots && start <= slots - count && rows.size() <= to.batch &&
      first_row <= to.batch - rows.size() &&
      std::all_of(rows.begin(), rows.end(), [&](std::size_t row) { return row < from.batch; });
  if (!alike || !fits) {
    throw ValueError(StrCat("found ", count, " slots from ", start, " on of ", rows.size(),
                            " rows to copy from a cache of ", from.batch, " x ", from.slots,
                            " to row ", first_row, " of one of ", to.batch, " x ", to.slots,
                            "; expected rows and slots of both, and layers alike"));
  }
  for (std::size_t layer = 0; layer < from.layers; ++layer) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::size_t source = (layer * from.batch + rows[r]) * from.heads;
      const std::size_t target = (layer * to.batch + first_row + r) * to.heads;
      for (std::size_t head = 0; head < from.heads; ++head) {
        std::memcpy(to.data + ((target + head) * to.slots + start) * bytes,
                    from.data + ((source + head) * from.slots + start) * bytes, count * bytes);
      }
    }
  }
}

}  // namespace lattice_bpd
