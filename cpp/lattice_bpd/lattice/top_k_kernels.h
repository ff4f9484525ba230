// The builds of the top-k scan, one for each instruction set, and the buffer that they fill.
#ifndef LATTICE_BPD_LATTICE_TOP_K_KERNELS_H_
#define LATTICE_BPD_LATTICE_TOP_K_KERNELS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/half.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

// How one logit is stored, as a type to choose vector loads by.
struct Float32Element {
  static constexpr std::size_t kBytes = 4;
  static float Load(const void* at) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
};
struct Float16Element {
  static constexpr std::size_t kBytes = 2;
  static float Load(const void* at) {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return Float16ToFloat(bits);
  }
};
struct BFloat16Element {
  static constexpr std::size_t kBytes = 2;
  static float Load(const void* at) {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return BFloat16ToFloat(bits);
  }
};

// Candidates of one row. A candidate is a 64-bit key, the smaller the better: the complement of
// the score's bits in an order-preserving form, then the token id, which breaks ties.
class TopKBuffer {
 public:
  explicit TopKBuffer(std::size_t top_k);

  std::size_t top_k() const { return top_k_; }
  void Clear() { size_ = 0; }
  bool full() const { return size_ >= keys_.size() - kSlack; }

  // Capacity for kSlack more always remains after a check of full().
  static constexpr std::size_t kSlack = 64;
  void Push(float score, std::size_t token_id) {
    keys_[size_++] = static_cast<std::uint64_t>(~Ordered(score)) << 32 | token_id;
  }

  // Cuts back to the k best; returns the score of the k-th. Needs k candidates.
  float KeepBest();

  // Candidates in the order of Push; space for kSlack more.
  std::uint64_t* keys() { return keys_.data(); }
  std::size_t size() const { return size_; }

  // The k best keys to sorted(), best first. Needs k candidates.
  void Sort();

  // The k-th largest of maxima(), which it puts into another order.
  float KthLargestMaximum();

  // Tokens and scores of the k sorted keys.
  void Write(TokenId* token_ids, float* scores) const;

  // Space for the k best keys and one more, and for the maxima of groups of logits; contents are
  // the caller's.
  std::uint64_t* sorted() { return sorted_.data(); }
  std::vector<float>* maxima() { return &maxima_; }

 private:
  // Unsigned integers in the order of the floats; both zeros are one.
  static std::uint32_t Ordered(float score) {
    score += 0.0f;
    std::uint32_t bits;
    std::memcpy(&bits, &score, sizeof bits);
    return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  }
  static float ScoreOf(std::uint64_t key);

  std::size_t top_k_;
  std::size_t size_ = 0;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint64_t> sorted_;
  std::vector<float> maxima_;
};

constexpr std::size_t kNoBadToken = std::numeric_limits<std::size_t>::max();

// A row of adjacent elements.
struct LogitsRow {
  const char* data;
  FloatType type;
  std::size_t columns;
};

struct TopKKernel {
  const char* name;
  // Leaves at least k candidates in the (cleared) buffer, the k best among them. Returns the token
  // of the first NaN or +inf; the buffer is of no use then.
  std::size_t (*scan)(const LogitsRow& row, TopKBuffer* buffer);
  // The k best candidates of a buffer that has k, best first, to `sorted`.
  void (*sort)(TopKBuffer* buffer);
  // sum exp(logit - best) over the row, for a finite `best`, the largest logit; to about 1e-6.
  double (*sum_exp)(const LogitsRow& row, float best);

  bool runs() const { return scan != nullptr; }
};

// With null pointers where this build or this processor lacks the instructions.
TopKKernel TopKAvx512();
TopKKernel TopKAvx2();
TopKKernel TopKNeon();
TopKKernel TopKScalar();

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_TOP_K_KERNELS_H_
