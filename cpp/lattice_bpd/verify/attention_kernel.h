// Attention of one block of queries over one head of keys, for the instruction set that the file
// which includes this is compiled for; kLanes is its width in floats.
//
// In an anonymous namespace, as all that several builds define.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "lattice_bpd/verify/attention_task.h"

namespace lattice_bpd {
namespace {

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef std::uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef std::uint32_t Words __attribute__((vector_size(4 * kLanes)));

constexpr std::size_t kKeys =
    kLanes == 16 ? 4 : 2;  // at a time: sums for four queries in registers

// By pointer, since how vectors are returned depends on the instruction set.
[[gnu::always_inline]] inline void Load(const float* from, Floats* to) {
  std::memcpy(to, from, sizeof *to);
}

// GCC converts generic vectors by parts.
[[gnu::always_inline]] inline void Load(const std::uint16_t* from, Floats* to) {
  Words words;
#if defined(__x86_64__)
  if constexpr (kLanes == 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, halves);  // the other one warns
    std::memcpy(&words, &wide, sizeof words);
  } else if constexpr (kLanes == 8) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    std::memcpy(&words, &wide, sizeof words);
  }
#endif
  if constexpr (kLanes == 4) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    words = __builtin_convertvector(halves, Words);
  }
  words <<= 16;
  std::memcpy(to, &words, sizeof *to);
}

[[gnu::always_inline]] inline void Store(const Floats* from, float* to) {
  std::memcpy(to, from, sizeof *from);
}

// To nearest, ties to even; what is not a number stays so.
[[gnu::always_inline]] inline void Store(const Floats* from, std::uint16_t* to) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  const Words rounded = (words + 0x7fff + ((words >> 16) & 1)) >> 16;
  const Words chosen = *from == *from ? rounded : (words >> 16) | 0x40;
  const Halves halves = __builtin_convertvector(chosen, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

// Of each group of kWidth lanes, the sums of its two halves: those of a, then those of b.
template <int kWidth, int... kLane>
[[gnu::always_inline]] inline void AddHalves(const Floats* a, const Floats* b, Floats* to,
                                             std::integer_sequence<int, kLane...>) {
  constexpr int kHalf = kWidth / 2;
  const Floats low = __builtin_shufflevector(
      *a, *b, (kLane / kWidth * kWidth + kLane % kHalf + (kLane % kWidth < kHalf ? 0 : kLanes))...);
  const Floats high = __builtin_shufflevector(
      *a, *b,
      (kLane / kWidth * kWidth + kHalf + kLane % kHalf + (kLane % kWidth < kHalf ? 0 : kLanes))...);
  *to = low + high;
}

// The sums of the lanes of kSums vectors, which it overwrites.
template <int kSums, int kCount = kSums, int kWidth = kLanes>
[[gnu::always_inline]] inline void SumAll(Floats* vectors, float* sums) {
  if constexpr (kCount > 1 && kWidth > 1) {
    for (int i = 0; i < kCount / 2; ++i) {
      AddHalves<kWidth>(&vectors[2 * i], &vectors[2 * i + 1], &vectors[i],
                        std::make_integer_sequence<int, kLanes>());
    }
    SumAll<kSums, kCount / 2, kWidth / 2>(vectors, sums);
  } else {
    // Each level doubled the groups of a vector: number i's bits lie reversed.
    constexpr int kGroups = kLanes / kWidth;
    float lanes[kCount * kLanes];
    std::memcpy(lanes, vectors, sizeof lanes);
    for (int i = 0; i < kSums; ++i) {
      int group = 0;
      for (int bit = 1, from = i % kGroups; bit < kGroups; bit *= 2, from /= 2) {
        group = 2 * group + from % 2;
      }
      const float* const first = lanes + i / kGroups * kLanes + group * kWidth;
      sums[i] = first[0];
      for (int k = 1; k < kWidth; ++k) sums[i] += first[k];
    }
  }
}

[[gnu::always_inline]] inline float Sum(const Floats* vector) {
  float lanes[kLanes];
  Store(vector, lanes);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// exp(x) of x <= 0, to 2e-7 of itself; 0 below -87; what is not a number stays so.
[[gnu::always_inline]] inline void TakeExponential(Floats* x) {
  constexpr float kPowers[] = {0x1.3ef7e4p-13f,
                               0x1.5c8ab6p-10f,
                               0x1.3b1e6ep-7f,
                               0x1.c6b754p-5f,
                               0x1.ebfbdep-3f,
                               0x1.62e430p-1f,
                               1.0f};
  const Floats given = *x;
  const Floats scaled = *x * 0x1.715476p0f;
  const Floats rounded = scaled + 0x1.8p23f;
  const Floats f = scaled - (rounded - 0x1.8p23f);
  Floats power = kPowers[0] - Floats{};
  for (int k = 1; k < 7; ++k) power = power * f + kPowers[k];
  Ints bits, n;
  std::memcpy(&bits, &power, sizeof bits);
  std::memcpy(&n, &rounded, sizeof n);
  bits += n << 23;
  std::memcpy(&power, &bits, sizeof power);
  const Floats smallest = -87.0f - Floats{};
  *x = given > smallest ? power : given <= smallest ? Floats{} : given;
}

// scores[i][p] = queries[i] . key of position p, for blocks of four queries.
// `block` holds kKeys keys as floats.
template <typename Number>
void Score(const AttentionTask& task, const float* queries, float* block, float* scores) {
  const std::size_t size = task.size, width = task.width;
  for (std::size_t p = 0; p < task.positions; p += kKeys) {
    for (std::size_t j = 0; j < kKeys; ++j) {
      const std::size_t position = std::min(p + j, task.positions - 1);
      const Number* const key = static_cast<const Number*>(task.keys) +
                                static_cast<std::ptrdiff_t>(position) * task.key_stride;
      for (std::size_t d = 0; d < size; d += kLanes) {
        Floats x;
        Load(key + d, &x);
        Store(&x, block + j * size + d);
      }
    }
    for (std::size_t i = 0; i < task.padded_queries; i += 4) {
      const float* query = queries + i * size;
      Floats sums[4 * kKeys] = {};
      for (std::size_t d = 0; d < size; d += kLanes) {
        Floats key[kKeys];
        for (std::size_t j = 0; j < kKeys; ++j) Load(block + j * size + d, &key[j]);
        for (std::size_t k = 0; k < 4; ++k) {
          Floats q;
          Load(query + k * size + d, &q);
          for (std::size_t j = 0; j < kKeys; ++j) sums[kKeys * k + j] += q * key[j];
        }
      }
      float dots[4 * kKeys];
      SumAll<4 * kKeys>(sums, dots);
      for (std::size_t k = 0; k < 4; ++k) {
        std::memcpy(scores + (i + k) * width + p, dots + kKeys * k, sizeof(float) * kKeys);
      }
    }
  }
}

// Turns scores into weights that sum to 1; those of positions that are not seen are 0.
inline void Normalize(const AttentionTask& task, std::size_t query, float* scores) {
  const std::size_t count = task.positions;
  const float kLowest = -std::numeric_limits<float>::infinity();
  task.mask(task, query, scores);
  for (std::size_t p = count; p < task.width; ++p) scores[p] = kLowest;
  Floats highest = kLowest - Floats{};
  for (std::size_t p = 0; p < task.width; p += kLanes) {
    Floats x;
    Load(scores + p, &x);
    highest = x > highest ? x : highest;
  }
  float most = kLowest;
  for (int i = 0; i < kLanes; ++i) most = std::max(most, highest[i]);
  if (most == kLowest) {
    std::replace(scores, scores + task.width, kLowest, 0.0f);  // others are not numbers
    return;
  }
  Floats total = {};
  for (std::size_t p = 0; p < task.width; p += kLanes) {
    Floats x;
    Load(scores + p, &x);
    x -= most;
    TakeExponential(&x);
    total += x;
    Store(&x, scores + p);
  }
  const float factor = 1.0f / Sum(&total);
  for (std::size_t p = 0; p < task.width; p += kLanes) {
    Floats x;
    Load(scores + p, &x);
    x *= factor;
    Store(&x, scores + p);
  }
}

// out[i] = sum of weights[i][p] * value of position p, for four queries and `kParts` vectors.
template <typename Number, int kParts>
[[gnu::always_inline]] inline void Mix(const AttentionTask& task, const float* weights,
                                       std::size_t first, std::size_t d) {
  const Number* value = static_cast<const Number*>(task.values) + d;
  const std::size_t width = task.width;
  Floats sums[4 * kParts] = {};
  for (std::size_t p = 0; p < task.positions; ++p, value += task.value_stride) {
    for (int part = 0; part < kParts; ++part) {
      Floats v;
      Load(value + part * kLanes, &v);
      for (int k = 0; k < 4; ++k) sums[4 * part + k] += v * weights[k * width + p];
    }
  }
  for (std::size_t k = 0; k < 4 && first + k < task.queries; ++k) {
    Number* out = static_cast<Number*>(task.outs[first + k]) + d;
    for (int part = 0; part < kParts; ++part) Store(&sums[4 * part + k], out + part * kLanes);
  }
}

template <typename Number>
void AttendTask(const AttentionTask& task, std::vector<float>* scratch) {
  const std::size_t size = task.size;
  scratch->resize(task.padded_queries * (size + task.width) + kKeys * size);
  float* const queries = scratch->data();
  float* const scores = queries + task.padded_queries * size;
  for (std::size_t i = 0; i < task.padded_queries; ++i) {
    for (std::size_t d = 0; d < size; d += kLanes) {
      Floats q = {};
      if (i < task.queries) Load(static_cast<const Number*>(task.query[i]) + d, &q);
      q *= task.scale;
      Store(&q, queries + i * size + d);
    }
  }
  Score<Number>(task, queries, scores + task.padded_queries * task.width, scores);
  for (std::size_t i = 0; i < task.queries; ++i) Normalize(task, i, scores + i * task.width);
  for (std::size_t i = 0; i < task.padded_queries; i += 4) {
    std::size_t d = 0;
    constexpr int kParts = kLanes == 16 ? 4 : 2;  // as many sums as there are registers for
    for (; d + kParts * kLanes <= size; d += kParts * kLanes) {
      Mix<Number, kParts>(task, scores + i * task.width, i, d);
    }
    for (; d < size; d += kLanes) Mix<Number, 1>(task, scores + i * task.width, i, d);
  }
}

void AttendBlock(const AttentionTask& task, FloatType type, std::vector<float>* scratch) {
  if (type == FloatType::kBFloat16) {
    AttendTask<std::uint16_t>(task, scratch);
  } else {
    AttendTask<float>(task, scratch);
  }
}

}  // namespace
}  // namespace lattice_bpd
