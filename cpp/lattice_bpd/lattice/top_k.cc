#include "lattice_bpd/lattice/top_k.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/instruction_sets.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/lattice/top_k_kernels.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kPartsPerThread = 4;  // so that a slow thread holds up little

InstructionSets<TopKKernel>& Sets() {
  static InstructionSets<TopKKernel> sets{TopKAvx512(), TopKAvx2(), TopKNeon(), TopKScalar()};
  return sets;
}

std::size_t SizeOf(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }

float LoadLogit(FloatType type, const char* at) {
  switch (type) {
    case FloatType::kFloat16:
      return Float16Element::Load(at);
    case FloatType::kBFloat16:
      return BFloat16Element::Load(at);
    default:
      return Float32Element::Load(at);
  }
}

// Row r where it is if its elements are adjacent, else gathered into `copy`.
LogitsRow RowOf(const LogitsView& logits, std::size_t r, std::vector<float>* copy) {
  const char* row =
      static_cast<const char*>(logits.data) + static_cast<std::ptrdiff_t>(r) * logits.row_stride;
  if (logits.column_stride == static_cast<std::ptrdiff_t>(SizeOf(logits.type)) ||
      logits.columns == 1) {
    return {row, logits.type, logits.columns};
  }
  copy->resize(logits.columns);
  for (float& logit : *copy) {
    logit = LoadLogit(logits.type, row);
    row += logits.column_stride;
  }
  return {reinterpret_cast<const char*>(copy->data()), FloatType::kFloat32, logits.columns};
}

[[noreturn]] void ThrowBadLogit(float logit, std::size_t row, std::size_t token) {
  throw ValueError(StrCat("head_logits: ", std::isnan(logit) ? "NaN" : "+inf", " at row ", row,
                          ", token ", token,
                          "; expected finite logits, or -inf for masked tokens. Check the head "
                          "that wrote them"));
}

// ln sum exp of a row whose largest logit is `best`; 0 where every token is masked.
double LogSumExp(const TopKKernel& kernel, const LogitsRow& row, float best) {
  if (std::isinf(best)) return 0.0;
  return best + std::log(kernel.sum_exp(row, best));
}

// A row takes about 600 ns and one for each 8 bytes; to wake a core that sleeps takes up to 80
// microseconds, so a thread gets half of that at least.
int UsefulThreads(const LogitsView& logits, int most) {
  constexpr std::size_t kNsPerRow = 600, kBytesPerNs = 8, kNsPerThread = 40'000;
  const std::size_t row_ns = kNsPerRow + logits.columns * SizeOf(logits.type) / kBytesPerNs;
  const std::size_t useful = std::max<std::size_t>(logits.rows * row_ns / kNsPerThread, 1);
  return static_cast<int>(std::min<std::size_t>(useful, ResolveThreads(most)));
}

// Rows first .. last - 1.
void SelectRows(const LogitsView& logits, const TopKOptions& options, std::size_t first,
                std::size_t last, TopK* out) {
  const TopKKernel& kernel = Sets().chosen();
  const auto k = static_cast<std::size_t>(options.top_k);
  TopKBuffer buffer(k);
  std::vector<float> copy;
  for (std::size_t r = first; r < last; ++r) {
    const LogitsRow row = RowOf(logits, r, &copy);
    buffer.Clear();
    const std::size_t bad = kernel.scan(row, &buffer);
    if (bad != kNoBadToken && options.skip_bad_rows) {
      std::fill_n(out->token_ids.data() + r * k, k, kPadToken);
      continue;
    }
    if (bad != kNoBadToken) {
      ThrowBadLogit(LoadLogit(row.type, row.data + bad * SizeOf(row.type)), r, bad);
    }
    float* scores = out->scores.data() + r * k;
    kernel.sort(&buffer);
    buffer.Write(out->token_ids.data() + r * k, scores);
    if (!options.log_softmax) continue;
    const double shift = LogSumExp(kernel, row, scores[0]);
    for (std::size_t i = 0; i < k; ++i) scores[i] = static_cast<float>(scores[i] - shift);
  }
}

}  // namespace

TopKBuffer::TopKBuffer(std::size_t top_k)
    : top_k_(top_k),
      keys_(std::max<std::size_t>(2 * top_k, top_k + 192) + kSlack),
      sorted_(top_k + 1) {}

float TopKBuffer::KeepBest() {
  const auto begin = keys_.begin();
  const auto kth = begin + static_cast<std::ptrdiff_t>(top_k_ - 1);
  std::nth_element(begin, kth, begin + static_cast<std::ptrdiff_t>(size_));
  size_ = top_k_;
  return ScoreOf(*kth);
}

void TopKBuffer::Sort() {
  if (size_ > top_k_) KeepBest();
  std::copy_n(keys_.begin(), top_k_, sorted_.begin());
  std::sort(sorted_.begin(), sorted_.begin() + static_cast<std::ptrdiff_t>(top_k_));
}

float TopKBuffer::KthLargestMaximum() {
  const auto kth = maxima_.begin() + static_cast<std::ptrdiff_t>(top_k_ - 1);
  std::nth_element(maxima_.begin(), kth, maxima_.end(), std::greater<float>());
  return *kth;
}

void TopKBuffer::Write(TokenId* token_ids, float* scores) const {
  for (std::size_t i = 0; i < top_k_; ++i) {
    token_ids[i] = static_cast<TokenId>(static_cast<std::uint32_t>(sorted_[i]));
    scores[i] = ScoreOf(sorted_[i]);
  }
}

float TopKBuffer::ScoreOf(std::uint64_t key) {
  const std::uint32_t ordered = ~static_cast<std::uint32_t>(key >> 32);
  return BitsToFloat(ordered ^ ((ordered >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

TopK SelectTopK(const LogitsView& logits, const TopKOptions& options) {
  if (options.top_k < 1 || static_cast<std::size_t>(options.top_k) > logits.columns) {
    throw ValueError(StrCat("top_k is ", options.top_k, "; expected 1..", logits.columns,
                            " (the vocabulary that head_logits has)"));
  }
  const auto k = static_cast<std::size_t>(options.top_k);
  TopK out{options.top_k, std::vector<TokenId>(logits.rows * k),
           std::vector<float>(logits.rows * k)};
  const int threads = UsefulThreads(logits, options.threads);
  const std::size_t parts = std::min(logits.rows, threads == 1 ? 1 : kPartsPerThread * threads);
  RunParallel(parts, threads, [&](std::size_t part) {
    SelectRows(logits, options, logits.rows * part / parts, logits.rows * (part + 1) / parts, &out);
  });
  return out;
}

std::vector<std::string> TopKInstructionSets() { return Sets().Names(); }

void SetTopKInstructionSet(const std::string& name) { Sets().Choose(name); }

}  // namespace lattice_bpd
