// The records of several counts files as one sorted list, equal ones added up.
#ifndef LATTICE_BPD_TRAIN_COUNT_MERGER_H_
#define LATTICE_BPD_TRAIN_COUNT_MERGER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lattice_bpd/train/count_file.h"

namespace lattice_bpd {

using CountFiles = std::vector<std::shared_ptr<const CountFile>>;

// A range of symbols.
struct SymbolRange {
  Symbol begin;
  Symbol end;
};

// Walks through the records of one file.
class CountCursor {
 public:
  // order: that of the records wanted, at most the file's; longer ones are cut, so that equal
  // records may follow each other.
  CountCursor(std::shared_ptr<const CountFile> file, int order, SymbolRange range);

  // False at the end. Throws FormatError where a block does not decode.
  bool Next();
  const CountRecord& record() const { return record_; }

 private:
  bool NextBlock();
  bool DecodeRecord();
  template <typename Integer>
  Integer DecodeVarint();

  std::shared_ptr<const CountFile> file_;
  SymbolRange range_;
  int cut_bits_;  // of each key
  int width_;     // of the file's keys
  std::size_t next_block_ = 0;
  std::vector<unsigned char> bytes_;
  const unsigned char* at_ = nullptr;
  const unsigned char* end_ = nullptr;
  bool fresh_ = true;  // no record of this block has been read
  Key128 key_ = 0;     // uncut
  CountRecord record_;
};

// Memory: one block for each file. O(log files) for each record. The result does not depend on
// the order of the files.
class CountMerger {
 public:
  CountMerger(const CountFiles& files, int order, SymbolRange range);

  // Puts the next record into *record; false at the end.
  bool Next(CountRecord* record);

 private:
  void SiftDown(std::size_t at);

  std::vector<CountCursor> cursors_;
  std::vector<std::uint32_t> heap_;  // cursors; the one with the smallest record first
};

// Cuts all symbols into up to num_parts ranges for which the files hold about as many bytes.
std::vector<SymbolRange> SplitSymbols(const CountFiles& files, const Vocabulary& vocabulary,
                                      std::size_t num_parts);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_COUNT_MERGER_H_
