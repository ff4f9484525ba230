#include "lattice_bpd/lm/packed_level.h"

#include <limits>
#include <unordered_map>

namespace lattice_bpd {
namespace {

constexpr std::size_t kMaxCodes = 1 << 16;

// The distinct values of a field by rising value, or none where a table does not pay.
struct ValueTable {
  std::vector<float> values;
  int code_bytes = 4;

  explicit ValueTable(const std::vector<float>& field) {
    std::vector<float> sorted;
    std::unordered_map<float, bool> seen;
    for (const float value : field) {
      if (!seen.emplace(value, true).second) continue;
      if (seen.size() > kMaxCodes) return;
      sorted.push_back(value);
    }
    const int bytes = sorted.size() <= 256 ? 1 : 2;
    if (bytes * field.size() + 4 * sorted.size() >= 4 * field.size()) return;
    std::sort(sorted.begin(), sorted.end());
    values = std::move(sorted);
    code_bytes = bytes;
  }

  // The value's bits as they are stored.
  std::uint32_t Encode(float value) const {
    if (code_bytes != 4) {
      return static_cast<std::uint32_t>(std::lower_bound(values.begin(), values.end(), value) -
                                        values.begin());
    }
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }
};

void Put(std::uint32_t bits, int bytes, std::uint8_t** at) {
  std::memcpy(*at, &bits, static_cast<std::size_t>(bytes));  // little-endian
  *at += bytes;
}

// Child offsets fit 2 bytes where no group of nodes has more than 2^16 - 1 children before its
// last node's.
bool FitsShortChildren(const std::vector<std::uint32_t>& child_begin) {
  for (std::size_t i = 0; i < child_begin.size(); ++i) {
    const std::size_t base = i / kChildBaseStride * kChildBaseStride;
    if (child_begin[i] - child_begin[base] > std::numeric_limits<std::uint16_t>::max()) {
      return false;
    }
  }
  return true;
}

std::vector<std::uint8_t> PackKeys(const std::vector<Symbol>& words, int bytes) {
  std::vector<std::uint8_t> keys(words.size() * static_cast<std::size_t>(bytes));
  std::uint8_t* at = keys.data();
  for (const Symbol word : words) Put(word, bytes, &at);
  return keys;
}

}  // namespace

LevelStorage PackLevel(const Trie& trie, int m) {
  const TrieLevel& level = trie.levels[m];
  const bool highest = m + 1 == trie.order();
  const ValueTable log_probs(level.log_prob);
  const ValueTable backoffs(level.backoff);
  LevelStorage out;
  out.form.size = level.size();
  // Two bytes leave 0xffff free: the search uses it for lanes without a candidate.
  if (m > 0) out.form.key_bytes = trie.vocabulary.num_symbols() < kMaxCodes ? 2 : 4;
  out.form.log_prob_bytes = static_cast<std::uint8_t>(log_probs.code_bytes);
  out.log_prob_values = log_probs.values;
  if (!highest) {
    out.form.backoff_bytes = static_cast<std::uint8_t>(backoffs.code_bytes);
    out.backoff_values = backoffs.values;
    out.form.child_bytes = FitsShortChildren(level.child_begin) ? 2 : 4;
  }
  out.keys = PackKeys(level.word, out.form.key_bytes);
  out.samples = SampleKeys(out.form, out.keys);

  out.payload.resize((level.size() + 1) * out.form.record_bytes());
  std::uint8_t* at = out.payload.data();
  for (std::size_t i = 0; i <= level.size(); ++i) {
    const bool real = i < level.size();
    Put(real ? log_probs.Encode(level.log_prob[i]) : 0, log_probs.code_bytes, &at);
    if (highest) continue;
    Put(real ? backoffs.Encode(level.backoff[i]) : 0, backoffs.code_bytes, &at);
    const std::uint32_t child = level.child_begin[i];
    if (out.form.child_bytes == 2 && i % kChildBaseStride == 0) out.child_bases.push_back(child);
    Put(out.form.child_bytes == 2 ? child - out.child_bases.back() : child, out.form.child_bytes,
        &at);
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
  return {storage.form,           storage.keys,        storage.payload, storage.log_prob_values,
          storage.backoff_values, storage.child_bases, storage.samples, num_children};
}

}  // namespace lattice_bpd
