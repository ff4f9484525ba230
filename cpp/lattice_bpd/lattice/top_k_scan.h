// The top-k scan over one row, for any vectors of 16 floats. Included by each instruction set's
// file after its target pragma, and by no other; Isa has
//   Vector, Mask                 16 floats; 16 truth values
//   Load<Element>(at)            16 adjacent logits as floats; no alignment
//   Fill(x)  Store(v, at)
//   Max(a, b)                    b where a is NaN
//   NotBelow(v, t)  Above(v, t)  !(v < t) and !(v <= t), so both are true for NaN
//   Or, Any(mask), Bits(mask)    bit i for lane i
//   Add, Subtract, Multiply      each rounded by itself (no fused multiply-add), for equal bits
//   PowerOfTwo(v)                2^(round v) for -126 <= v <= 0, and the rounded v
//   kCountsRanks                 whether to count ranks (top_k_ranks.h) instead of sorting
//   Floats, Keys                 the widest vectors of float and std::int64_t, as GCC's extension
#include "lattice_bpd/lattice/top_k_kernels.h"
#include "lattice_bpd/lattice/top_k_ranks.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kBlock = 4 * kLanes;
constexpr std::size_t kShortRow = 8192;  // logits; they stay in the first cache between two scans
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename Isa, typename Element>
class TopKScan {
 public:
  static std::size_t Scan(const LogitsRow& row, TopKBuffer* buffer) {
    TopKScan scan(buffer);
    const std::size_t head = UnalignedHead(row);
    scan.Start(row, head);
    std::size_t bad = scan.AddPart(row, 0, head);
    std::size_t base = head;
    for (; bad == kNoBadToken && base + kBlock <= row.columns; base += kBlock) {
      bad = scan.AddBlock(row.data + base * Element::kBytes, base, kBlock);
    }
    return bad != kNoBadToken ? bad : scan.AddPart(row, base, row.columns);
  }

  // exp(x) = 2^n exp(f), n = round(x / ln 2), |f| <= ln 2 / 2, the latter by its Taylor series.
  static double SumExp(const LogitsRow& row, float best) {
    constexpr std::size_t kFlush = 64;  // vectors summed in float before they go to the double
    double total = 0.0;
    std::size_t base = 0;
    while (base + kLanes <= row.columns) {
      typename Isa::Vector sum = Isa::Fill(0.0f);
      for (std::size_t i = 0; i < kFlush && base + kLanes <= row.columns; ++i, base += kLanes) {
        sum = Isa::Add(sum, ExpBelow(LoadAt(row.data + base * Element::kBytes), best));
      }
      total += SumLanes(sum, kLanes);
    }
    if (base == row.columns) return total;
    char padded[kLanes * Element::kBytes];  // with copies of the last logit, which are not summed
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::size_t token = std::min(base + i, row.columns - 1);
      std::memcpy(padded + i * Element::kBytes, row.data + token * Element::kBytes,
                  Element::kBytes);
    }
    return total + SumLanes(ExpBelow(LoadAt(padded), best), row.columns - base);
  }

 private:
  using Vector = typename Isa::Vector;

  explicit TopKScan(TopKBuffer* buffer) : buffer_(buffer) {}

  static Vector LoadAt(const char* at) { return Isa::template Load<Element>(at); }

  // The logits before the first cache line; a vector that lies across two lines costs double.
  static std::size_t UnalignedHead(const LogitsRow& row) {
    const std::size_t bytes = -reinterpret_cast<std::uintptr_t>(row.data) % 64;
    return std::min(bytes / Element::kBytes, row.columns);
  }

  // The threshold before the first block, of maxima of groups of logits: of all logits of a short
  // row, of every fourth 64 or more of a long one, spread over the row, since vocabularies begin
  // with tokens that are rarely likely. Logits may equal it and still be wanted, so that it is not
  // strict; NaN is passed over, +inf may become the threshold: the scan meets both.
  void Start(const LogitsRow& row, std::size_t head) {
    const std::size_t groups = (2 * buffer_->top_k() + kBlock - 1) / kBlock * kBlock;
    const std::size_t size = row.columns - head;
    const std::size_t step = size <= kShortRow ? groups : 4 * groups;  // from sample to sample
    const std::size_t rounds = size / step;
    if (rounds < 2) return;
    std::vector<float>* maxima = buffer_->maxima();
    maxima->resize(groups);
    for (std::size_t g = 0; g < groups; g += kBlock) {
      Vector best[4] = {Isa::Fill(kLowest), Isa::Fill(kLowest), Isa::Fill(kLowest),
                        Isa::Fill(kLowest)};
      for (std::size_t r = 0; r < rounds; ++r) {
        const char* at = row.data + (head + r * step + g) * Element::kBytes;
        for (std::size_t v = 0; v < 4; ++v) {
          best[v] = Isa::Max(LoadAt(at + v * kLanes * Element::kBytes), best[v]);
        }
      }
      for (std::size_t v = 0; v < 4; ++v) Isa::Store(best[v], maxima->data() + g + v * kLanes);
    }
    threshold_ = Isa::kCountsRanks && groups <= kMostCounted
                     ? KthLargestByCounting<Isa>(maxima->data(), groups, buffer_->top_k())
                     : buffer_->KthLargestMaximum();
  }

  // Adds the logits first .. last - 1, fewer than a block.
  std::size_t AddPart(const LogitsRow& row, std::size_t first, std::size_t last) {
    if (first == last) return kNoBadToken;
    char padded[kBlock * Element::kBytes] = {};
    std::memcpy(padded, row.data + first * Element::kBytes, (last - first) * Element::kBytes);
    return AddBlock(padded, first, last - first);
  }

  // Adds the first `count` logits of a block whose first token is `base`.
  std::size_t AddBlock(const char* at, std::size_t base, std::size_t count) {
    std::uint64_t lanes = strict_ ? Passing<true>(at) : Passing<false>(at);
    if (lanes == 0) return kNoBadToken;
    if (count < kBlock) lanes &= (std::uint64_t{1} << count) - 1;
    for (; lanes != 0; lanes &= lanes - 1) {
      const auto lane = static_cast<std::size_t>(__builtin_ctzll(lanes));
      const float logit = Element::Load(at + lane * Element::kBytes);
      if (!(logit < kInfinity)) return base + lane;
      buffer_->Push(logit, base + lane);
    }
    if (buffer_->full()) {
      threshold_ = buffer_->KeepBest();
      strict_ = true;  // k logits of smaller token ids are as good
    }
    return kNoBadToken;
  }

  template <bool kStrict>
  std::uint64_t Passing(const char* at) const {
    const Vector threshold = Isa::Fill(threshold_);
    typename Isa::Mask passes[4];
    for (std::size_t v = 0; v < 4; ++v) {
      const Vector logits = LoadAt(at + v * kLanes * Element::kBytes);
      passes[v] = kStrict ? Isa::Above(logits, threshold) : Isa::NotBelow(logits, threshold);
    }
    if (!Isa::Any(Isa::Or(Isa::Or(passes[0], passes[1]), Isa::Or(passes[2], passes[3])))) return 0;
    std::uint64_t lanes = 0;
    for (std::size_t v = 0; v < 4; ++v) {
      lanes |= static_cast<std::uint64_t>(Isa::Bits(passes[v])) << (v * kLanes);
    }
    return lanes;
  }

  // exp(logits - best); below e^-87, and for -inf, e^-87, which no sum notices.
  static Vector ExpBelow(Vector logits, float best) {
    const Vector x = Isa::Max(Isa::Subtract(logits, Isa::Fill(best)), Isa::Fill(-87.0f));
    Vector n;
    const Vector power = Isa::PowerOfTwo(Isa::Multiply(x, Isa::Fill(1.44269504f)), &n);
    // ln 2 in two parts, the first of few bits, so that n times it is exact
    Vector f = Isa::Subtract(x, Isa::Multiply(n, Isa::Fill(0.693359375f)));
    f = Isa::Subtract(f, Isa::Multiply(n, Isa::Fill(-2.12194440e-4f)));
    Vector sum = Isa::Fill(1.0f / 720.0f);
    for (const float term : {1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) {
      sum = Isa::Add(Isa::Multiply(sum, f), Isa::Fill(term));
    }
    return Isa::Multiply(sum, power);
  }

  static double SumLanes(Vector sum, std::size_t count) {
    float lanes[kLanes];
    Isa::Store(sum, lanes);
    double total = 0.0;
    for (std::size_t i = 0; i < count; ++i) total += static_cast<double>(lanes[i]);
    return total;
  }

  TopKBuffer* buffer_;
  float threshold_ = kLowest;
  bool strict_ = false;
};

template <typename Isa>
void SortCandidates(TopKBuffer* buffer) {
  if (Isa::kCountsRanks && buffer->size() <= kMostCounted) {
    SortByCounting<Isa>(buffer->keys(), buffer->size(), buffer->top_k(), buffer->sorted());
  } else {
    buffer->Sort();
  }
}

template <typename Isa>
std::size_t ScanRow(const LogitsRow& row, TopKBuffer* buffer) {
  switch (row.type) {
    case FloatType::kFloat16:
      return TopKScan<Isa, Float16Element>::Scan(row, buffer);
    case FloatType::kBFloat16:
      return TopKScan<Isa, BFloat16Element>::Scan(row, buffer);
    default:
      return TopKScan<Isa, Float32Element>::Scan(row, buffer);
  }
}

template <typename Isa>
double SumExpOfRow(const LogitsRow& row, float best) {
  switch (row.type) {
    case FloatType::kFloat16:
      return TopKScan<Isa, Float16Element>::SumExp(row, best);
    case FloatType::kBFloat16:
      return TopKScan<Isa, BFloat16Element>::SumExp(row, best);
    default:
      return TopKScan<Isa, Float32Element>::SumExp(row, best);
  }
}

}  // namespace
}  // namespace lattice_bpd
