#include <cstring>
#include <utility>

#include "lattice_bpd/base/checksum.h"
#include "lattice_bpd/train/count_file.h"
#include "lattice_bpd/train/count_file_checksum.h"

namespace lattice_bpd {
namespace {

template <typename Integer>
void AppendVarint(Integer value, std::vector<unsigned char>* out) {
  for (; value > 0x7f; value >>= 7) out->push_back(static_cast<unsigned char>(value) | 0x80);
  out->push_back(static_cast<unsigned char>(value));
}

}  // namespace

CountFileWriter::CountFileWriter(const Vocabulary& vocabulary, int order, std::size_t block_bytes,
                                 Sink sink)
    : header_(), block_bytes_(block_bytes), sink_(std::move(sink)) {
  std::memcpy(header_.magic, kCountMagic, sizeof kCountMagic);
  header_.version = kCountFormatVersion;
  header_.byte_order = kCountByteOrder;
  header_.order = static_cast<std::uint32_t>(order);
  header_.vocab_size = vocabulary.vocab_size;
  header_.bos = vocabulary.bos;
  header_.eos = vocabulary.eos;
  header_.unk = vocabulary.unk;
  Write(&header_, sizeof header_);
}

void CountFileWriter::Encode(const CountRecord& record) {
  const bool fresh = entry_.num_records == 0 || record.symbol != last_.symbol;
  AppendVarint(static_cast<Key128>(record.count) << 1 | (fresh ? 1 : 0), &block_);
  if (fresh) {
    if (entry_.num_records == 0) entry_.first_symbol = record.symbol;
    AppendVarint(record.symbol - (entry_.num_records == 0 ? 0 : last_.symbol), &block_);
    last_.key = 0;
  }
  AppendVarint(record.key - last_.key, &block_);
  last_ = record;
  ++entry_.num_records;
  num_keys_ += record.count;
}

void CountFileWriter::EndBlock() {
  if (entry_.num_records == 0) return;
  entry_.offset = offset_;
  entry_.size = static_cast<std::uint32_t>(block_.size());
  entry_.last_symbol = last_.symbol;
  entry_.checksum = Checksum(block_.data(), block_.size());
  Write(block_.data(), block_.size());
  num_records_ += entry_.num_records;
  index_.push_back(std::exchange(entry_, BlockEntry{}));
  block_.clear();
}

void CountFileWriter::Finish(std::uint64_t num_sequences, const std::string& sources) {
  EndBlock();
  CountFileFooter footer = {};
  footer.totals = {num_sequences, num_keys_};
  footer.num_records = num_records_;
  footer.sources_offset = offset_;
  footer.sources_size = sources.size();
  footer.num_blocks = index_.size();
  const std::size_t index_size = index_.size() * sizeof(BlockEntry);
  footer.file_size = offset_ + sources.size() + index_size + sizeof footer;
  std::memcpy(footer.magic, kCountEndMagic, sizeof kCountEndMagic);
  footer.checksum = CountFileChecksum(header_, sources, index_, footer);
  Write(sources.data(), sources.size());
  Write(index_.data(), index_size);
  Write(&footer, sizeof footer);
}

void CountFileWriter::Write(const void* data, std::size_t size) {
  sink_(data, size);
  offset_ += size;
}

}  // namespace lattice_bpd
