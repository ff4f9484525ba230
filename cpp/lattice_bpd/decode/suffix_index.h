// An index of a text's earlier occurrences of its last tokens, and of what followed them.
#ifndef LATTICE_BPD_DECODE_SUFFIX_INDEX_H_
#define LATTICE_BPD_DECODE_SUFFIX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

// A suffix of `size` tokens that occurred earlier, and the position after that occurrence; size 0:
// none.
struct Match {
  std::size_t position = 0;
  std::size_t size = 0;
};

// The position after each n-gram, by the n-gram's hash. Open addressing, linear probing.
class PositionTable {
 public:
  // The position, to read and to set; 0 where it is new.
  std::uint32_t& At(std::uint64_t hash);

  // The position; 0 where there is none.
  std::uint32_t Find(std::uint64_t hash) const { return entries_[IndexOf(hash)].position; }

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint32_t position = 0;
  };

  std::size_t IndexOf(std::uint64_t hash) const;
  void Grow();

  std::vector<Entry> entries_ = std::vector<Entry>(256);
  std::size_t used_ = 0;
};

// The text so far, and the last occurrence of each n-gram of up to `longest` tokens. With 8 a token
// takes about 1 microsecond and up to 0.5 kB.
class SuffixIndex {
 public:
  // Throws ValueError unless longest is at least 1.
  explicit SuffixIndex(std::size_t longest);

  // Appends a token, and returns what Find returned before.
  Match Append(std::int64_t token);

  // The last earlier occurrence of the longest suffix that has one, of the text followed by a path.
  // Tokens 1 2 3 1 2: the suffix 1 2 occurred at the start, so position 2, size 2. With the path 3:
  // the suffix 1 2 3 did, so position 3, size 3.
  Match Find(Span<std::int64_t> path) const;

  // `count` tokens from a position that Find returned. At the end of the text it continues with
  // what was drafted (Ziv and Lempel 1977), so that a loop is repeated up to `count` tokens. Tokens
  // 1 2 3 1 2: from position 2 on 3 1 2 followed, and then 3 again. Throws ValueError for a
  // position after the text.
  std::vector<std::int64_t> Follow(std::size_t position, std::size_t count,
                                   Span<std::int64_t> path) const;

  const std::vector<std::int64_t>& tokens() const { return tokens_; }
  std::size_t longest() const { return longest_; }

 private:
  bool OccursBefore(std::size_t position, std::size_t size, Span<std::int64_t> path) const;
  std::int64_t FromEnd(std::size_t distance, Span<std::int64_t> path) const;

  std::size_t longest_;
  std::vector<std::int64_t> tokens_;
  PositionTable next_positions_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DECODE_SUFFIX_INDEX_H_
