#include "lattice_bpd/lm/packed_level.h"

#include <limits>
#include <utility>

#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/vector_memory.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kMaxCodes = 1 << 16;
constexpr std::size_t kMaxFastCodes = 12 << 10;  // a table of 48 KiB

std::uint32_t BitsOf(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A hash table from values to their codes, with linear probing.
class CodeTable {
 public:
  explicit CodeTable(std::size_t most) : size_(1) {
    while (size_ < 2 * most) size_ *= 2;
    entries_.resize(size_);
  }

  // The value's code; `next` becomes the code of a value that has none.
  std::uint32_t& CodeOf(float value, std::uint32_t next) {
    const std::uint32_t bits = BitsOf(value + 0.0f);  // -0 is 0
    std::size_t at = (bits * 0x9e3779b97f4a7c15u) >> 32 & (size_ - 1);
    while (entries_[at].code != kNone && entries_[at].bits != bits) at = (at + 1) & (size_ - 1);
    if (entries_[at].code == kNone) entries_[at] = {bits, next};
    return entries_[at].code;
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Entry {
    std::uint32_t bits = 0;
    std::uint32_t code = kNone;
  };

  std::size_t size_;  // a power of 2
  std::vector<Entry> entries_;
};

// The distinct values of a field by increasing value, or none where a table would not be smaller.
class ValueTable {
 public:
  ValueTable(const std::vector<float>& field, Packing packing)
      : codes_(packing == Packing::kFast ? kMaxFastCodes : kMaxCodes) {
    const std::size_t most = packing == Packing::kFast ? kMaxFastCodes : kMaxCodes;
    std::vector<float> distinct;
    InterruptCounter interrupts;
    for (const float value : field) {
      interrupts.Count();
      const auto next = static_cast<std::uint32_t>(distinct.size());
      if (codes_.CodeOf(value, next) != next) continue;
      distinct.push_back(value);
      if (distinct.size() > most) return;
    }
    const int bytes = distinct.size() <= 256 ? 1 : 2;
    if (bytes * field.size() + 4 * distinct.size() >= 4 * field.size()) return;
    std::sort(distinct.begin(), distinct.end());
    for (std::uint32_t code = 0; code < distinct.size(); ++code) {
      codes_.CodeOf(distinct[code], code) = code;
    }
    values_ = std::move(distinct);
    code_bytes_ = bytes;
  }

  const std::vector<float>& values() const { return values_; }
  int code_bytes() const { return code_bytes_; }

  // The value's bits as they are stored.
  std::uint32_t Encode(float value) {
    return code_bytes_ == 4 ? BitsOf(value) : codes_.CodeOf(value, 0);
  }

 private:
  CodeTable codes_;
  std::vector<float> values_;
  int code_bytes_ = 4;
};

void Put(std::uint32_t bits, int bytes, std::uint8_t** at) {
  std::memcpy(*at, &bits, static_cast<std::size_t>(bytes));  // little-endian
  *at += bytes;
}

// The most children that any node of a group has before it in the group.
std::uint32_t Spread(const std::vector<std::uint32_t>& child_begin, std::size_t group) {
  const std::size_t first = group * kChildBaseStride;
  const std::size_t last = std::min(first + kChildBaseStride, child_begin.size()) - 1;
  return child_begin[last] - child_begin[first];
}

// How many bytes a first child takes.
int ChildBytes(const std::vector<std::uint32_t>& child_begin, Packing packing) {
  if (packing == Packing::kFast) return 4;
  const std::size_t num_groups = (child_begin.size() + kChildBaseStride - 1) / kChildBaseStride;
  std::size_t num_wide = 0;  // groups that do not fit 1 byte
  bool fits_short = true;
  for (std::size_t group = 0; group < num_groups; ++group) {
    const std::uint32_t spread = Spread(child_begin, group);
    num_wide += spread > std::numeric_limits<std::uint8_t>::max();
    fits_short = fits_short && spread <= std::numeric_limits<std::uint16_t>::max();
  }
  const int plain = fits_short ? 2 : 4;
  const std::size_t bases = 4 * num_groups;
  const std::size_t plain_size = child_begin.size() * plain + (fits_short ? bases : 0);
  const std::size_t small_size = child_begin.size() + bases + 4 * kChildBaseStride * num_wide;
  return small_size < plain_size && child_begin.back() < kWideGroup ? 1 : plain;
}

// Fills the bases, and the wide groups' children; what a record then holds is Offset.
void AddBases(const std::vector<std::uint32_t>& child_begin, LevelStorage* out) {
  if (out->form.child_bytes == 4) return;
  for (std::size_t first = 0; first < child_begin.size(); first += kChildBaseStride) {
    const bool wide = out->form.child_bytes == 1 && Spread(child_begin, first / kChildBaseStride) >
                                                        std::numeric_limits<std::uint8_t>::max();
    const std::size_t num_wide = out->wide_children.size() / kChildBaseStride;
    out->child_bases.push_back(wide ? kWideGroup | static_cast<std::uint32_t>(num_wide)
                                    : child_begin[first]);
    for (std::size_t i = first; wide && i < first + kChildBaseStride; ++i) {
      out->wide_children.push_back(child_begin[std::min(i, child_begin.size() - 1)]);
    }
  }
}

std::uint32_t Offset(const LevelStorage& out, std::size_t node, std::uint32_t child) {
  if (out.form.child_bytes == 4) return child;
  const std::uint32_t base = out.child_bases[node / kChildBaseStride];
  const bool wide = out.form.child_bytes == 1 && (base & kWideGroup) != 0;
  return wide ? 0 : child - base;
}

std::vector<std::uint8_t> PackKeys(const std::vector<Symbol>& words, int bytes) {
  std::vector<std::uint8_t> keys;
  ResizeInHugePages(words.size() * static_cast<std::size_t>(bytes), &keys);
  std::uint8_t* at = keys.data();
  for (const Symbol word : words) Put(word, bytes, &at);
  return keys;
}

}  // namespace

LevelStorage PackLevel(const Trie& trie, int m, Packing packing) {
  const TrieLevel& level = trie.levels[m];
  const bool highest = m + 1 == trie.order();
  ValueTable log_probs(level.log_prob, packing);
  ValueTable backoffs(level.backoff, packing);
  LevelStorage out;
  out.form.size = level.size();
  out.form.log_prob_error = level.log_prob_error;
  // Two bytes leave 0xffff free: the search uses it for lanes without a candidate.
  if (m > 0) out.form.key_bytes = trie.vocabulary.num_symbols() < kMaxCodes ? 2 : 4;
  out.form.log_prob_bytes = static_cast<std::uint8_t>(log_probs.code_bytes());
  out.log_prob_values = log_probs.values();
  if (!highest) {
    out.form.backoff_bytes = static_cast<std::uint8_t>(backoffs.code_bytes());
    out.form.backoff_error = level.backoff_error;
    out.backoff_values = backoffs.values();
    out.form.child_bytes = static_cast<std::uint8_t>(ChildBytes(level.child_begin, packing));
    AddBases(level.child_begin, &out);
  }
  out.keys = PackKeys(level.word, out.form.key_bytes);
  out.samples = SampleKeys(out.form, out.keys);

  ResizeInHugePages((level.size() + 1) * out.form.record_bytes(), &out.payload);
  std::uint8_t* at = out.payload.data();
  InterruptCounter interrupts;
  for (std::size_t i = 0; i <= level.size(); ++i) {
    interrupts.Count();
    const bool real = i < level.size();
    Put(real ? log_probs.Encode(level.log_prob[i]) : 0, log_probs.code_bytes(), &at);
    if (highest) continue;
    Put(real ? backoffs.Encode(level.backoff[i]) : 0, backoffs.code_bytes(), &at);
    Put(Offset(out, i, level.child_begin[i]), out.form.child_bytes, &at);
  }
  return out;
}

std::vector<std::uint8_t> SampleKeys(const LevelForm& form, Span<std::uint8_t> keys) {
  std::vector<std::uint8_t> samples;
  const std::size_t bytes = form.key_bytes;
  for (std::size_t at = 0; at < keys.size(); at += kSampleStride * bytes) {
    samples.insert(samples.end(), keys.begin() + at, keys.begin() + at + bytes);
  }
  return samples;
}

PackedLevel ViewOf(const LevelStorage& storage, std::uint32_t num_children) {
  return {storage.form,
          storage.keys,
          storage.payload,
          storage.log_prob_values,
          storage.backoff_values,
          storage.child_bases,
          storage.wide_children,
          storage.samples,
          num_children};
}

}  // namespace lattice_bpd
