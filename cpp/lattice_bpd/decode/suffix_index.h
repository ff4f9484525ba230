// Where the last tokens of a text stood earlier in it, and what followed them there.
#ifndef LATTICE_BPD_DECODE_SUFFIX_INDEX_H_
#define LATTICE_BPD_DECODE_SUFFIX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lattice_bpd/base/array_view.h"

namespace lattice_bpd {

// A suffix of `size` tokens that stood earlier, and the place behind it there; size 0: none.
struct Match {
  std::size_t place = 0;
  std::size_t size = 0;
};

// A place behind each piece, by the piece's hash. Open addressing, linear probing.
class PlaceTable {
 public:
  // The place, to read and to set; 0 where it is new.
  std::uint32_t& At(std::uint64_t hash);

  // The place; 0 where there is none.
  std::uint32_t Find(std::uint64_t hash) const { return entries_[SlotOf(hash)].place; }

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint32_t place = 0;
  };

  std::size_t SlotOf(std::uint64_t hash) const;
  void Grow();

  std::vector<Entry> entries_ = std::vector<Entry>(256);
  std::size_t used_ = 0;
};

// The text so far, and where each of its pieces of up to `longest` tokens stood last. With 8 a
// token takes about 1 microsecond and up to 0.5 kB.
class SuffixIndex {
 public:
  // Throws ValueError unless longest is at least 1.
  explicit SuffixIndex(std::size_t longest);

  // Appends a token, and says what Find said before.
  Match Append(std::int64_t token);

  // Where the longest suffix that stood earlier stood last: of the text with a path behind it.
  // Tokens 1 2 3 1 2: the suffix 1 2 stood at the start, so place 2, size 2. Behind them the path
  // 3: the suffix 1 2 3 did, so place 3, size 3.
  Match Find(Span<std::int64_t> path) const;

  // `count` tokens from a place on that Find has found. What reaches the end of the text goes on
  // with what was drafted (Ziv and Lempel 1977), so that a loop is drafted as often as there is
  // room. Tokens 1 2 3 1 2: from place 2 on 3 1 2 followed, and then 3 again. Throws ValueError for
  // a place behind the text.
  std::vector<std::int64_t> Follow(std::size_t place, std::size_t count,
                                   Span<std::int64_t> path) const;

  const std::vector<std::int64_t>& tokens() const { return tokens_; }
  std::size_t longest() const { return longest_; }

 private:
  bool StoodBefore(std::size_t place, std::size_t size, Span<std::int64_t> path) const;
  std::int64_t FromEnd(std::size_t distance, Span<std::int64_t> path) const;

  std::size_t longest_;
  std::vector<std::int64_t> tokens_;
  PlaceTable behind_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DECODE_SUFFIX_INDEX_H_
