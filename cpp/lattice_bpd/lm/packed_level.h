// One n-gram order of an LM as it is stored, in memory and in the file.
//
//   keys      the last symbol of each n-gram, 2 or 4 bytes each; none for unigrams, where node i
//             is symbol i. The children of a history are a run of sorted keys.
//   payload   a record for each n-gram: log probability (a float, or a 1- or 2-byte code into a
//             table of the distinct values), backoff weight (likewise; none at the highest order),
//             first child (4 bytes, or 1 or 2 bytes counted from a base for each 32 nodes; none at
//             the highest order). One record more than n-grams, so that record i + 1 ends i's
//             children
//   wide      for 1-byte children: 4-byte children of the groups of 32 nodes that have more than
//             255, whose index is in their base (top bit set)
//   samples   every 32nd key (each 64-byte line of 2-byte keys has one), so that a search in a
//             long run reads a line or two of samples and one of keys. May be computed on load
//
// Real LMs have few distinct log probabilities (WikiText-2, order 4: 16,682 among 602,316
// bigrams, 3,433 among 1,869,042 four-grams), so codes are exact and small: 4 bytes for a
// four-gram, 8 for a trigram.
//
// All reads from a file are clamped: damage gives wrong numbers, never a wild read.
#ifndef LATTICE_BPD_LM_PACKED_LEVEL_H_
#define LATTICE_BPD_LM_PACKED_LEVEL_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"
#include "lattice_bpd/lm/trie.h"

namespace lattice_bpd {

constexpr std::uint32_t kNoNode = 0xffffffffu;
constexpr std::uint32_t kSampleStride = 32;     // keys between samples
constexpr std::uint32_t kChildBaseStride = 32;  // nodes between child bases
constexpr std::uint32_t kWideGroup =
    0x80000000u;  // marks a base that is an index into wide_children

// kFast reads one cache line for an n-gram: first children take 4 bytes, and codes are used only
// where their table fits a first-level cache. kSmall codes whatever gets smaller by it, first
// children with 1 or 2 bytes; on WikiText-2 that is 1.9 bytes less for each n-gram.
enum class Packing { kFast, kSmall };

// How the fields of a level are stored; what the file says about it.
struct LevelForm {
  std::uint64_t size = 0;           // n-grams
  std::uint8_t key_bytes = 0;       // 0 (unigrams), 2 or 4
  std::uint8_t log_prob_bytes = 4;  // 1 or 2 (codes), 4 (float)
  std::uint8_t backoff_bytes = 0;   // 0 (highest order), 1 or 2 (codes), 4 (float)
  std::uint8_t child_bytes = 0;     // 0 (highest order), 1 or 2 (from a base), 4
  std::uint32_t reserved = 0;
  float log_prob_error = 0.0f;  // the most that quantizing changed; natural logs
  float backoff_error = 0.0f;

  std::uint32_t record_bytes() const { return log_prob_bytes + backoff_bytes + child_bytes; }
  bool is_highest() const { return child_bytes == 0; }
};
static_assert(sizeof(LevelForm) == 24, "24 bytes on disk");

// A borrowed, read-only level. Construction is the packer's and the file reader's business.
struct PackedLevel {
  LevelForm form;
  Span<std::uint8_t> keys;
  Span<std::uint8_t> payload;
  Span<float> log_prob_values;  // the values of codes; empty for floats
  Span<float> backoff_values;
  Span<std::uint32_t> child_bases;    // empty for 4-byte children
  Span<std::uint32_t> wide_children;  // kChildBaseStride for each wide group
  Span<std::uint8_t> samples;
  std::uint32_t num_children = 0;  // n-grams of the next level

  std::uint64_t size() const { return form.size; }

  Symbol Key(std::uint32_t node) const {
    if (form.key_bytes == 2) return Load<std::uint16_t>(keys.data() + 2ull * node);
    return form.key_bytes == 4 ? Load<std::uint32_t>(keys.data() + 4ull * node) : node;
  }

  float LogProb(std::uint32_t node) const {
    return Value(Record(node), form.log_prob_bytes, log_prob_values);
  }

  // Where log_prob_values holds LogProb(node). Not where it is empty.
  std::uint32_t LogProbCode(std::uint32_t node) const {
    return Code(Record(node), form.log_prob_bytes, log_prob_values);
  }

  // Natural log; 0 at the highest order.
  float Backoff(std::uint32_t node) const {
    if (form.backoff_bytes == 0) return 0.0f;
    return Value(Record(node) + form.log_prob_bytes, form.backoff_bytes, backoff_values);
  }

  // Node `node`'s children are ChildBegin(node) .. ChildBegin(node + 1) - 1 of the next level.
  // Not for the highest order. `node` may be size().
  std::uint32_t ChildBegin(std::uint32_t node) const {
    const std::uint8_t* field = Record(node) + form.log_prob_bytes + form.backoff_bytes;
    if (form.child_bytes == 4) return std::min(Load<std::uint32_t>(field), num_children);
    const std::uint32_t base = child_bases[node / kChildBaseStride];
    if (form.child_bytes == 1) {
      const std::uint32_t child = (base & kWideGroup) == 0 ? base + *field : WideChild(base, node);
      return std::min(child, num_children);
    }
    const std::uint64_t child = std::uint64_t{base} + Load<std::uint16_t>(field);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(child, num_children));
  }

  // ChildBegin(node) and ChildBegin(node + 1) in one go, the second not below the first.
  std::pair<std::uint32_t, std::uint32_t> Children(std::uint32_t node) const {
    if (form.child_bytes == 1) {
      const std::uint32_t last = ChildBegin(node + 1);
      return {std::min(ChildBegin(node), last), last};
    }
    const std::uint32_t stride = form.record_bytes();
    const std::uint8_t* field = payload.data() + static_cast<std::uint64_t>(node) * stride +
                                form.log_prob_bytes + form.backoff_bytes;
    std::uint64_t begin, end;
    if (form.child_bytes == 2) {
      begin = std::uint64_t{child_bases[node / kChildBaseStride]} + Load<std::uint16_t>(field);
      end = std::uint64_t{child_bases[(node + 1) / kChildBaseStride]} +
            Load<std::uint16_t>(field + stride);
    } else {
      begin = Load<std::uint32_t>(field);
      end = Load<std::uint32_t>(field + stride);
    }
    end = std::min<std::uint64_t>(end, num_children);
    return {static_cast<std::uint32_t>(std::min(begin, end)), static_cast<std::uint32_t>(end)};
  }

  // The node among begin .. end - 1 with this key, or kNoNode. O(log(end - begin)) steps, about
  // two cache misses for runs up to 1,000 keys.
  std::uint32_t Find(std::uint32_t begin, std::uint32_t end, Symbol word) const {
    if (form.key_bytes == 0) return word;
    Narrow(word, &begin, &end);
    return FindNarrowed(begin, end, word);
  }

  // Find in two steps, for callers with something else to do while memory answers: Narrow leaves
  // at most 2 * kSampleStride keys and prefetches their line. Not for unigrams.
  void Narrow(Symbol word, std::uint32_t* begin, std::uint32_t* end) const {
    if (*end - *begin <= 2 * kSampleStride) return;
    const std::uint32_t first = *begin / kSampleStride + 1;
    const std::uint32_t size = (*end - 1) / kSampleStride + 1 - first;
    const std::uint32_t after =
        first + (form.key_bytes == 2 ? CountBelow<std::uint16_t>(samples, first, size, word + 1)
                                     : CountBelow<std::uint32_t>(samples, first, size, word + 1));
    if (after != first) *begin = (after - 1) * kSampleStride;
    *end = std::min(*end, after * kSampleStride);
    __builtin_prefetch(keys.data() + std::uint64_t{*begin} * form.key_bytes);
  }

  std::uint32_t FindNarrowed(std::uint32_t begin, std::uint32_t end, Symbol word) const {
    if (begin == end) return kNoNode;
    const std::uint32_t node =
        begin + (form.key_bytes == 2 ? CountBelow<std::uint16_t>(keys, begin, end - begin, word)
                                     : CountBelow<std::uint32_t>(keys, begin, end - begin, word));
    return node < end && Key(node) == word ? node : kNoNode;
  }

  // Prefetches what Narrow or FindNarrowed of this run reads first.
  void PrefetchSearch(std::uint32_t begin, std::uint32_t end) const {
    const std::uint32_t middle = begin + (end - begin) / 2;
    if (end - begin > 2 * kSampleStride) {
      __builtin_prefetch(samples.data() + std::uint64_t{middle / kSampleStride} * form.key_bytes);
    } else {
      __builtin_prefetch(keys.data() + std::uint64_t{middle} * form.key_bytes);
    }
  }

  // Prefetches a node's record.
  void Prefetch(std::uint32_t node) const {
    __builtin_prefetch(Record(node));
    if (!child_bases.empty()) __builtin_prefetch(&child_bases[node / kChildBaseStride]);
  }

  const std::uint8_t* Record(std::uint32_t node) const {
    return payload.data() + static_cast<std::uint64_t>(node) * form.record_bytes();
  }

  template <typename T>
  static T Load(const std::uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }

 private:
  std::uint32_t WideChild(std::uint32_t base, std::uint32_t node) const {
    const std::uint64_t index =
        std::uint64_t{base & ~kWideGroup} * kChildBaseStride + node % kChildBaseStride;
    return index < wide_children.size() ? wide_children[index] : num_children;
  }

  static float Value(const std::uint8_t* field, std::uint8_t bytes, const Span<float>& values) {
    return bytes == 4 ? Load<float>(field) : values[Code(field, bytes, values)];
  }

  static std::uint32_t Code(const std::uint8_t* field, std::uint8_t bytes,
                            const Span<float>& values) {
    const std::uint32_t code = bytes == 2 ? Load<std::uint16_t>(field) : *field;
    return std::min(code, static_cast<std::uint32_t>(values.size()) - 1);
  }

  // How many of the sorted keys first .. first + size - 1 are below `bound`. Without a branch on
  // keys, which no processor would predict (a mask: compilers make a branch of `? :`).
  template <typename K>
  static std::uint32_t CountBelow(const Span<std::uint8_t>& bytes, std::uint32_t first,
                                  std::uint32_t size, std::uint32_t bound) {
    const K* const begin = reinterpret_cast<const K*>(bytes.data()) + first;
    const K* at = begin;
    for (; size > 1; size -= size / 2) at += (size / 2) & -std::uint32_t{at[size / 2 - 1] < bound};
    return static_cast<std::uint32_t>(at - begin) + (size == 1 && *at < bound);
  }
};

// The memory of a PackedLevel that is not mapped from a file.
struct LevelStorage {
  LevelForm form;
  std::vector<std::uint8_t> keys;
  std::vector<std::uint8_t> payload;
  std::vector<float> log_prob_values;
  std::vector<float> backoff_values;
  std::vector<std::uint32_t> child_bases;
  std::vector<std::uint32_t> wide_children;
  std::vector<std::uint8_t> samples;
};

// Packs level `m` of a valid trie: the same numbers in the fewest bytes that `packing` allows.
LevelStorage PackLevel(const Trie& trie, int m, Packing packing = Packing::kFast);

// Every kSampleStride-th key of a level.
std::vector<std::uint8_t> SampleKeys(const LevelForm& form, Span<std::uint8_t> keys);

PackedLevel ViewOf(const LevelStorage& storage, std::uint32_t num_children);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_PACKED_LEVEL_H_
