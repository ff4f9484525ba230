#include "lattice_bpd/train/count_merger.h"

#include <algorithm>
#include <utility>

#include "lattice_bpd/base/parallel.h"

namespace lattice_bpd {
namespace {

bool Before(const CountRecord& a, const CountRecord& b) {
  return a.symbol != b.symbol ? a.symbol < b.symbol : a.key < b.key;
}

}  // namespace

CountCursor::CountCursor(std::shared_ptr<const CountFile> file, int order, SymbolRange range)
    : file_(std::move(file)), range_(range) {
  const KeyLayout layout(file_->order(), file_->vocabulary().num_symbols());
  width_ = layout.width();
  cut_bits_ = (file_->order() - order) * layout.bits;
  const std::vector<BlockEntry>& blocks = file_->blocks();
  const auto first = std::partition_point(
      blocks.begin(), blocks.end(),
      [&](const BlockEntry& block) { return block.last_symbol < range.begin; });
  next_block_ = static_cast<std::size_t>(first - blocks.begin());
}

bool CountCursor::Next() {
  do {
    while (at_ == end_) {
      if (!NextBlock()) return false;
    }
    if (!DecodeRecord()) file_->FailBlock(next_block_ - 1, "holds what is no record; count again");
  } while (record_.symbol < range_.begin);
  return record_.symbol < range_.end;
}

bool CountCursor::NextBlock() {
  if (next_block_ == file_->blocks().size()) return false;
  if (file_->blocks()[next_block_].first_symbol >= range_.end) return false;
  file_->ReadBlock(next_block_++, &bytes_);
  at_ = bytes_.data();
  end_ = at_ + bytes_.size();
  fresh_ = true;
  record_.symbol = 0;
  return true;
}

// Leaves at_ after end_ where the integer is cut or too long.
template <typename Integer>
Integer CountCursor::DecodeVarint() {
  Integer value = 0;
  for (unsigned shift = 0; shift < 8 * sizeof(Integer) && at_ != end_; shift += 7) {
    const unsigned char byte = *at_++;
    value |= static_cast<Integer>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  at_ = nullptr;
  end_ = nullptr;
  return value;
}

bool CountCursor::DecodeRecord() {
  const auto head = DecodeVarint<Key128>();
  if (at_ == nullptr) return false;
  record_.count = static_cast<std::uint64_t>(head >> 1);
  const BlockEntry& block = file_->blocks()[next_block_ - 1];
  if ((head & 1) != 0) {
    const auto added = DecodeVarint<std::uint32_t>();
    key_ = 0;
    if (at_ == nullptr || added > block.last_symbol - record_.symbol) return false;
    record_.symbol += added;
    if (fresh_ ? record_.symbol < block.first_symbol : added == 0) return false;
  } else if (fresh_) {
    return false;
  }
  fresh_ = false;
  key_ += DecodeVarint<Key128>();
  record_.key = key_ >> cut_bits_;
  return at_ != nullptr && record_.count > 0 && key_ >> width_ == 0;
}

CountMerger::CountMerger(const CountFiles& files, int order, SymbolRange range) {
  cursors_.reserve(files.size());
  for (const auto& file : files) {
    cursors_.emplace_back(file, order, range);
    if (cursors_.back().Next()) {
      heap_.push_back(static_cast<std::uint32_t>(cursors_.size() - 1));
    }
  }
  for (std::size_t i = heap_.size(); i-- > 0;) SiftDown(i);
}

bool CountMerger::Next(CountRecord* record) {
  if (heap_.empty()) return false;
  *record = cursors_[heap_[0]].record();
  record->count = 0;
  do {
    CountCursor& cursor = cursors_[heap_[0]];
    record->count += cursor.record().count;
    if (!cursor.Next()) {
      heap_[0] = heap_.back();
      heap_.pop_back();
    }
    SiftDown(0);
  } while (!heap_.empty() && !Before(*record, cursors_[heap_[0]].record()));
  return true;
}

void CountMerger::SiftDown(std::size_t at) {
  for (;;) {
    std::size_t child = 2 * at + 1;
    if (child >= heap_.size()) return;
    if (child + 1 < heap_.size() &&
        Before(cursors_[heap_[child + 1]].record(), cursors_[heap_[child]].record())) {
      ++child;
    }
    if (!Before(cursors_[heap_[child]].record(), cursors_[heap_[at]].record())) return;
    std::swap(heap_[at], heap_[child]);
    at = child;
  }
}

std::vector<SymbolRange> SplitSymbols(const CountFiles& files, const Vocabulary& vocabulary,
                                      std::size_t num_parts) {
  std::vector<std::uint64_t> bytes(vocabulary.num_symbols() + std::size_t{1}, 0);
  for (const auto& file : files) {
    for (const BlockEntry& block : file->blocks()) bytes[block.first_symbol + 1] += block.size;
  }
  for (std::size_t i = 1; i < bytes.size(); ++i) bytes[i] += bytes[i - 1];
  const std::vector<std::size_t> bounds = SplitByWeight(bytes, num_parts);
  std::vector<SymbolRange> ranges;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    ranges.push_back({static_cast<Symbol>(bounds[i]), static_cast<Symbol>(bounds[i + 1])});
  }
  return ranges;
}

}  // namespace lattice_bpd
