#include "lattice_bpd/train/count_file.h"

#include <cstring>
#include <utility>

#include "lattice_bpd/base/checksum.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/count_file_checksum.h"

namespace lattice_bpd {

CountFile::CountFile(std::shared_ptr<const FileReader> file) : file_(std::move(file)) {
  ReadHeader();
  ReadFooter();
  ReadSourcesAndIndex();
  CheckIndex();
}

template <typename... Parts>
void CountFile::Fail(const Parts&... parts) const {
  throw FormatError(StrCat(name(), ": ", parts...));
}

void CountFile::ReadHeader() {
  if (size() < sizeof header_) {
    Fail("the file has ", size(), " bytes, fewer than the header of a counts file; it is empty or ",
         "cut, count again");
  }
  file_->ReadAt(0, &header_, sizeof header_);
  if (std::memcmp(header_.magic, kCountMagic, sizeof kCountMagic) != 0) {
    Fail(
        "not a counts file of lattice-bpd (wrong magic number at byte 0); expected a file "
        "written by `lattice-bpd ngram count`");
  }
  if (header_.byte_order != kCountByteOrder) {
    Fail("written on a machine of another byte order; count here");
  }
  if (header_.version != kCountFormatVersion) {
    Fail("format version ", header_.version, " at byte 8; this release reads version ",
         kCountFormatVersion, ": count again, or use the release that wrote it");
  }
  if (header_.order < 1 || header_.order > kMaxOrder) {
    Fail("order ", header_.order, " at byte 16; expected 1..", kMaxOrder);
  }
  vocabulary_ = {header_.vocab_size, header_.bos, header_.eos, header_.unk};
  const std::uint64_t limit = std::uint64_t{header_.vocab_size} + 3;
  if (header_.vocab_size == 0 || header_.vocab_size > kMaxVocabSize || header_.bos >= limit ||
      header_.eos >= limit || header_.unk >= limit) {
    Fail("vocab_size ", header_.vocab_size, " or a special symbol at byte 20 is out of range");
  }
}

void CountFile::ReadFooter() {
  const bool is_complete = size() >= sizeof header_ + sizeof footer_;
  if (is_complete) file_->ReadAt(size() - sizeof footer_, &footer_, sizeof footer_);
  if (!is_complete || std::memcmp(footer_.magic, kCountEndMagic, sizeof kCountEndMagic) != 0) {
    Fail("the file ends after ", size(), " bytes without the mark of its end: it was cut or ",
         "appended to; copy it again or count again");
  }
  if (footer_.file_size != size()) {
    Fail("the file has ", size(), " bytes; its footer says ", footer_.file_size,
         ": it was cut or appended to; copy it again or count again");
  }
  const std::uint64_t end = size() - sizeof footer_;
  const bool fits =
      footer_.sources_offset >= sizeof header_ && footer_.sources_offset <= end &&
      footer_.sources_size <= end - footer_.sources_offset &&
      footer_.num_blocks <= size() / sizeof(BlockEntry) &&
      footer_.sources_offset + footer_.sources_size + footer_.num_blocks * sizeof(BlockEntry) ==
          end;
  if (!fits)
    Fail("the footer (last ", sizeof footer_, " bytes) does not fit the file; copy it again");
}

void CountFile::ReadSourcesAndIndex() {
  sources_.resize(footer_.sources_size);
  file_->ReadAt(footer_.sources_offset, sources_.data(), sources_.size());
  index_.resize(footer_.num_blocks);
  file_->ReadAt(footer_.sources_offset + sources_.size(), index_.data(),
                index_.size() * sizeof(BlockEntry));
  if (CountFileChecksum(header_, sources_, index_, footer_) != footer_.checksum) {
    Fail("the header, the index or the footer (bytes 0..", sizeof header_ - 1, " and ",
         footer_.sources_offset, "..", size() - 1,
         ") was altered: its checksum differs; copy it again or count again");
  }
}

void CountFile::CheckIndex() const {
  std::uint64_t offset = sizeof header_;
  Symbol symbol = 0;
  for (std::size_t i = 0; i < index_.size(); ++i) {
    const BlockEntry& entry = index_[i];
    if (entry.offset != offset || entry.size > footer_.sources_offset - offset ||
        entry.first_symbol < symbol || entry.last_symbol < entry.first_symbol ||
        entry.last_symbol >= vocabulary_.num_symbols()) {
      Fail("entry ", i, " of the index is out of order or lies outside the file; count again");
    }
    offset += entry.size;
    symbol = entry.last_symbol;
  }
}

void CountFile::ReadBlock(std::size_t index, std::vector<unsigned char>* bytes) const {
  const BlockEntry& entry = index_[index];
  bytes->resize(entry.size);
  file_->ReadAt(entry.offset, bytes->data(), entry.size);
  if (Checksum(bytes->data(), entry.size) == entry.checksum) return;
  FailBlock(index, "was altered: its checksum differs; copy the file again or count again");
}

void CountFile::FailBlock(std::size_t index, const std::string& what) const {
  const BlockEntry& entry = index_[index];
  Fail("block ", index, " (bytes ", entry.offset, "..", entry.offset + entry.size - 1, ") ", what);
}

}  // namespace lattice_bpd
