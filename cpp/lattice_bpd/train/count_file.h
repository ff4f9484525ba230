// Counts on disk: spilled runs and saved counts are the same thing, a sorted list of records.
//
//   header   CountFileHeader, 40 bytes
//   blocks   records, coded; each block can be read alone
//   sources  UTF-8 text: what was counted, one name a line
//   index    32 bytes for each block: BlockEntry
//   footer   CountFileFooter, 72 bytes
//
// A record is a symbol, the key of the order - 1 symbols that follow it (continuation_keys.h) and
// a count. The counts of all orders are sums of records, so merging is adding equal records.
// Inside a block each record is two or three integers of 7 bits a byte, low bits first:
//
//   2 * count + (1 if the symbol differs from the record before, or the block begins)
//   symbol - symbol before (0 before the first)         only where that bit is 1
//   key - key before (0 before the first of a symbol)
//
// Everything is little-endian. The footer's checksum covers the header, the sources, the index and
// the footer (with that field zero); each entry's checksum covers its block.
#ifndef LATTICE_BPD_TRAIN_COUNT_FILE_H_
#define LATTICE_BPD_TRAIN_COUNT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lattice_bpd/base/file_reader.h"
#include "lattice_bpd/lm/vocabulary.h"
#include "lattice_bpd/train/continuation_keys.h"

namespace lattice_bpd {

constexpr char kCountMagic[8] = {'L', 'B', 'P', 'D', '-', 'N', 'C', '\n'};
constexpr char kCountEndMagic[8] = {'L', 'B', 'P', 'D', '-', 'E', 'N', 'D'};
constexpr std::uint32_t kCountFormatVersion = 1;

struct CountFileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t byte_order;  // 0x01020304 as the writer's machine stores it
  std::uint32_t order;
  std::uint32_t vocab_size;
  Symbol bos;
  Symbol eos;
  Symbol unk;
  std::uint32_t reserved;
};
static_assert(sizeof(CountFileHeader) == 40, "the header is 40 bytes on disk");

struct BlockEntry {
  std::uint64_t offset;
  std::uint32_t size;  // bytes
  std::uint32_t num_records;
  Symbol first_symbol;
  Symbol last_symbol;
  std::uint64_t checksum;
};
static_assert(sizeof(BlockEntry) == 32, "an index entry is 32 bytes on disk");

// What the records of a file come from. <s> begins and </s> ends each sequence.
struct CountTotals {
  std::uint64_t num_sequences = 0;
  std::uint64_t num_keys = 0;  // sum of all counts: tokens, and <s> for each sequence
};

struct CountFileFooter {
  CountTotals totals;
  std::uint64_t num_records;
  std::uint64_t sources_offset;
  std::uint64_t sources_size;
  std::uint64_t num_blocks;
  std::uint64_t file_size;
  std::uint64_t checksum;
  char magic[8];
};
static_assert(sizeof(CountFileFooter) == 72, "the footer is 72 bytes on disk");

struct CountRecord {
  Symbol symbol = 0;
  std::uint64_t count = 0;
  Key128 key = 0;
};

// Writes a file front to back.
class CountFileWriter {
 public:
  using Sink = std::function<void(const void* data, std::size_t size)>;

  // block_bytes: a block is closed once it has that many. Memory: one block.
  CountFileWriter(const Vocabulary& vocabulary, int order, std::size_t block_bytes, Sink sink);

  // Records must come in rising order of (symbol, key).
  void Add(const CountRecord& record) {
    if (block_.size() >= block_bytes_) EndBlock();
    Encode(record);
  }

  // Ends the file. num_keys is counted here.
  void Finish(std::uint64_t num_sequences, const std::string& sources);

  std::uint64_t bytes_written() const { return offset_; }
  std::uint64_t bytes_pending() const { return block_.size(); }
  std::uint64_t num_keys() const { return num_keys_; }

 private:
  void Encode(const CountRecord& record);
  void EndBlock();
  void Write(const void* data, std::size_t size);

  CountFileHeader header_;
  const std::size_t block_bytes_;
  const Sink sink_;
  std::vector<unsigned char> block_;
  BlockEntry entry_ = {};
  CountRecord last_;
  std::vector<BlockEntry> index_;
  std::uint64_t offset_ = 0;
  std::uint64_t num_keys_ = 0;
  std::uint64_t num_records_ = 0;
};

// A complete file, open for reading. Memory: the index.
class CountFile {
 public:
  // Throws FormatError for what is no counts file, is cut or altered; the blocks are checked as
  // they are read.
  explicit CountFile(std::shared_ptr<const FileReader> file);

  const std::string& name() const { return file_->name(); }
  std::uint64_t size() const { return file_->size(); }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  int order() const { return static_cast<int>(header_.order); }
  const CountTotals& totals() const { return footer_.totals; }
  std::uint64_t num_records() const { return footer_.num_records; }
  const std::string& sources() const { return sources_; }
  const std::vector<BlockEntry>& blocks() const { return index_; }

  // Throws FormatError where the block was altered, IoError where it cannot be read.
  void ReadBlock(std::size_t index, std::vector<unsigned char>* bytes) const;

  // Throws FormatError: "<name>: block <index> (bytes a..b) <what>".
  [[noreturn]] void FailBlock(std::size_t index, const std::string& what) const;

 private:
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const;
  void ReadHeader();
  void ReadFooter();
  void ReadSourcesAndIndex();
  void CheckIndex() const;

  std::shared_ptr<const FileReader> file_;
  CountFileHeader header_;
  CountFileFooter footer_;
  Vocabulary vocabulary_;
  std::string sources_;
  std::vector<BlockEntry> index_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_COUNT_FILE_H_
