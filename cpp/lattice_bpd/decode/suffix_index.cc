#include "lattice_bpd/decode/suffix_index.h"

#include <algorithm>
#include <utility>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

// The hash of an n-gram with one more token before it (the finalizer of SplitMix64).
std::uint64_t Hash(std::uint64_t ngram, std::int64_t token) {
  std::uint64_t x = ngram + 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(token);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

std::size_t PositionTable::IndexOf(std::uint64_t hash) const {
  const std::size_t mask = entries_.size() - 1;
  std::size_t at = hash & mask;
  while (entries_[at].position != 0 && entries_[at].hash != hash) at = (at + 1) & mask;
  return at;
}

std::uint32_t& PositionTable::At(std::uint64_t hash) {
  std::size_t at = IndexOf(hash);
  if (entries_[at].position == 0) {
    if (2 * ++used_ > entries_.size()) {
      Grow();
      at = IndexOf(hash);
    }
    entries_[at].hash = hash;
  }
  return entries_[at].position;
}

void PositionTable::Grow() {
  std::vector<Entry> old(2 * entries_.size());
  std::swap(old, entries_);
  for (const Entry& entry : old) {
    if (entry.position != 0) entries_[IndexOf(entry.hash)] = entry;
  }
}

SuffixIndex::SuffixIndex(std::size_t longest) : longest_(longest) {
  if (longest < 1) throw ValueError("SuffixIndex: longest is 0; expected 1 token or more");
}

// The token at this distance from the end of text and path; 0 is the last one.
std::int64_t SuffixIndex::FromEnd(std::size_t distance, Span<std::int64_t> path) const {
  if (distance < path.size()) return path[path.size() - 1 - distance];
  return tokens_[tokens_.size() - 1 - (distance - path.size())];
}

// Whether the last `size` tokens are those before `position`: hashes may collide.
bool SuffixIndex::OccursBefore(std::size_t position, std::size_t size,
                               Span<std::int64_t> path) const {
  for (std::size_t i = 0; i < size; ++i) {
    if (position < size || tokens_[position - 1 - i] != FromEnd(i, path)) return false;
  }
  return true;
}

Match SuffixIndex::Append(std::int64_t token) {
  const auto end = static_cast<std::uint32_t>(tokens_.size());
  Match match;
  std::uint64_t hash = 0;
  for (std::size_t size = 1; size <= std::min(longest_, tokens_.size()); ++size) {
    hash = Hash(hash, FromEnd(size - 1, {}));
    std::uint32_t& position = next_positions_.At(hash);
    if (position != 0 && OccursBefore(position, size, {})) match = {position, size};
    position = end;  // above 0: there is a token before it
  }
  tokens_.push_back(token);
  return match;
}

Match SuffixIndex::Find(Span<std::int64_t> path) const {
  Match match;
  std::uint64_t hash = 0;
  const std::size_t longest = std::min(longest_, tokens_.size() + path.size());
  while (match.size < longest) {  // an occurrence of an n-gram is one of its suffixes too
    hash = Hash(hash, FromEnd(match.size, path));
    const std::uint32_t position = next_positions_.Find(hash);
    if (position == 0 || !OccursBefore(position, match.size + 1, path)) break;
    match = {position, match.size + 1};
  }
  return match;
}

std::vector<std::int64_t> SuffixIndex::Follow(std::size_t position, std::size_t count,
                                              Span<std::int64_t> path) const {
  const std::size_t known = tokens_.size(), total = known + path.size();
  if (position >= total) {
    throw ValueError(
        StrCat("SuffixIndex: position ", position, " of ", total, " tokens; expected less"));
  }
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = position + i % (total - position);
    tokens.push_back(at < known ? tokens_[at] : path[at - known]);
  }
  return tokens;
}

}  // namespace lattice_bpd
