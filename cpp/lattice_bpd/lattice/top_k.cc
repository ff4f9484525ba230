#include "lattice_bpd/lattice/top_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/half.h"

namespace lattice_bpd {
namespace {

struct Candidate {
  float score;
  TokenId token_id;
};

// True where a comes before b in a slot.
bool Better(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.token_id < b.token_id);
}

// Loads one logit of the given storage type.
struct LoadFloat32 {
  float operator()(const char* at) const {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
};
struct LoadFloat16 {
  float operator()(const char* at) const {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return Float16ToFloat(bits);
  }
};
struct LoadBFloat16 {
  float operator()(const char* at) const {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return BFloat16ToFloat(bits);
  }
};

void CheckLogit(float logit, std::size_t row, std::size_t column) {
  if (logit < std::numeric_limits<float>::infinity()) return;
  throw ValueError(StrCat("head_logits: ", std::isnan(logit) ? "NaN" : "+inf", " at row ", row,
                          ", token ", column,
                          "; expected finite logits, or -inf for masked tokens. Check the head "
                          "that wrote them"));
}

// Leaves the `k` best of one row in `heap`, the worst on top. Equal scores: tokens come in rising
// order, so that a later one never displaces an earlier one.
template <typename Load>
void SelectRow(const Load& load, const char* row, const LogitsView& logits, std::size_t r,
               std::size_t k, std::vector<Candidate>* heap) {
  heap->clear();
  const auto logit_at = [&](std::size_t column) {
    return load(row + static_cast<std::ptrdiff_t>(column) * logits.column_stride);
  };
  for (std::size_t column = 0; column < k; ++column) {
    const float logit = logit_at(column);
    if (!(logit < std::numeric_limits<float>::infinity())) CheckLogit(logit, r, column);
    heap->push_back({logit, static_cast<TokenId>(column)});
  }
  std::make_heap(heap->begin(), heap->end(), Better);
  float threshold = heap->front().score;
  for (std::size_t column = k; column < logits.columns; ++column) {
    const float logit = logit_at(column);
    if (logit <= threshold) continue;  // false for NaN, which is caught below
    if (!(logit < std::numeric_limits<float>::infinity())) CheckLogit(logit, r, column);
    std::pop_heap(heap->begin(), heap->end(), Better);
    heap->back() = {logit, static_cast<TokenId>(column)};
    std::push_heap(heap->begin(), heap->end(), Better);
    threshold = heap->front().score;
  }
  std::sort_heap(heap->begin(), heap->end(), Better);
}

// ln sum exp of a row; -inf where every token is masked.
template <typename Load>
double LogSumExp(const Load& load, const char* row, const LogitsView& logits, float best) {
  if (std::isinf(best)) return 0.0;
  double sum = 0.0;
  for (std::size_t column = 0; column < logits.columns; ++column) {
    const float logit = load(row + static_cast<std::ptrdiff_t>(column) * logits.column_stride);
    sum += std::exp(static_cast<double>(logit) - best);
  }
  return best + std::log(sum);
}

template <typename Load>
void SelectRows(const Load& load, const LogitsView& logits, const TopKOptions& options, TopK* out) {
  std::vector<Candidate> heap;
  heap.reserve(out->top_k);
  for (std::size_t r = 0; r < logits.rows; ++r) {
    const char* row =
        static_cast<const char*>(logits.data) + static_cast<std::ptrdiff_t>(r) * logits.row_stride;
    SelectRow(load, row, logits, r, static_cast<std::size_t>(out->top_k), &heap);
    const double shift =
        options.log_softmax ? LogSumExp(load, row, logits, heap.front().score) : 0.0;
    for (const Candidate& candidate : heap) {
      out->token_ids.push_back(candidate.token_id);
      out->scores.push_back(static_cast<float>(candidate.score - shift));
    }
  }
}

}  // namespace

TopK SelectTopK(const LogitsView& logits, const TopKOptions& options) {
  if (options.top_k < 1 || static_cast<std::size_t>(options.top_k) > logits.columns) {
    throw ValueError(StrCat("top_k is ", options.top_k, "; expected 1..", logits.columns,
                            " (the vocabulary that head_logits has)"));
  }
  TopK out;
  out.top_k = options.top_k;
  out.token_ids.reserve(logits.rows * options.top_k);
  out.scores.reserve(logits.rows * options.top_k);
  switch (logits.type) {
    case FloatType::kFloat32:
      SelectRows(LoadFloat32(), logits, options, &out);
      break;
    case FloatType::kFloat16:
      SelectRows(LoadFloat16(), logits, options, &out);
      break;
    case FloatType::kBFloat16:
      SelectRows(LoadBFloat16(), logits, options, &out);
      break;
  }
  return out;
}

}  // namespace lattice_bpd
