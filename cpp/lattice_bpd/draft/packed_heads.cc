#include "lattice_bpd/draft/packed_heads.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kTask = 256;  // rows

const PackedHeads::Weights& Checked(const PackedHeads::Weights& weights) {
  const std::size_t slots = weights.num_slots, size = weights.hidden_size,
                    inner = weights.inner_size, kept = weights.token_ids.size();
  const std::size_t one = slots * inner * size;
  const bool fits = one > 0 && kept > 0 && size % PackedMatrix::kColumns == 0 &&
                    inner % PackedMatrix::kColumns == 0 && weights.inner.size() == 2 * one &&
                    weights.inner_bias.size() == slots * inner && weights.outer.size() == one &&
                    weights.outer_bias.size() == slots * size &&
                    weights.rows.size() == kept * size &&
                    (weights.rows_bias.empty() || weights.rows_bias.size() == kept);
  if (!fits) {
    throw ValueError(StrCat("PackedHeads: ", slots, " slots of width ", inner, " on states of ",
                            size, " and ", kept, " tokens; expected arrays of these sizes, and ",
                            "multiples of ", PackedMatrix::kColumns));
  }
  return weights;
}

void AddNormalized(Span<float> vector, std::vector<float>* inputs) {
  double squares = 0.0;
  for (const float x : vector) squares += double{x} * x;
  const double mean = squares / static_cast<double>(vector.size());
  const auto factor =
      static_cast<float>(1.0 / std::sqrt(mean + std::numeric_limits<float>::epsilon()));
  for (const float x : vector) inputs->push_back(x * factor);
}

std::vector<float> Copy(Span<float> numbers) { return {numbers.begin(), numbers.end()}; }

}  // namespace

PackedHeads::PackedHeads(const Weights& weights)
    : num_slots_(Checked(weights).num_slots),
      hidden_size_(weights.hidden_size),
      inner_size_(weights.inner_size),
      inner_(weights.inner.data(), num_slots_ * inner_size_, 2 * hidden_size_),
      outer_(weights.outer.data(), num_slots_ * hidden_size_, inner_size_),
      rows_(weights.rows.data(), weights.token_ids.size(), hidden_size_),
      inner_bias_(Copy(weights.inner_bias)),
      outer_bias_(Copy(weights.outer_bias)),
      rows_bias_(Copy(weights.rows_bias)),
      token_ids_(weights.token_ids.begin(), weights.token_ids.end()) {}

TopK PackedHeads::Find(Span<float> hidden, Span<float> embedding, int top_k, int threads) const {
  if (hidden.size() != hidden_size_ || embedding.size() != hidden_size_) {
    throw ValueError(StrCat("PackedHeads: a state of ", hidden.size(), " and an embedding of ",
                            embedding.size(), " numbers; expected ", hidden_size_, " each"));
  }
  std::vector<float> inputs;
  AddNormalized(hidden, &inputs);
  AddNormalized(embedding, &inputs);
  const auto for_tasks = [&](std::size_t rows, const auto& run) {
    RunParallel((rows + kTask - 1) / kTask, threads,
                [&](std::size_t task) { run(task * kTask, std::min(rows, (task + 1) * kTask)); });
  };
  std::vector<float> inner(inner_.rows), states(outer_.rows);
  for_tasks(inner_.rows, [&](std::size_t first, std::size_t last) {
    inner_.Multiply(first, last, 1, inputs.data(), inner.data(), 0);
    for (std::size_t i = first; i < last; ++i) {
      const float x = inner[i] + inner_bias_[i];
      inner[i] = x / (1.0f + std::exp(-x));
    }
  });
  for_tasks(outer_.rows, [&](std::size_t first, std::size_t last) {
    for (std::size_t end; first < last; first = end) {
      const std::size_t slot = first / hidden_size_;
      end = std::min(last, (slot + 1) * hidden_size_);
      outer_.Multiply(first, end, 1, inner.data() + slot * inner_size_, states.data(), 0);
      for (std::size_t i = first; i < end; ++i) {
        states[i] += hidden[i - slot * hidden_size_] + outer_bias_[i];
      }
    }
  });
  const std::size_t kept = rows_.rows;
  std::vector<float> logits(num_slots_ * kept);
  for_tasks(kept, [&](std::size_t first, std::size_t last) {
    rows_.Multiply(first, last, num_slots_, states.data(), logits.data(), kept);
    for (std::size_t i = first; i < last && !rows_bias_.empty(); ++i) {
      for (std::size_t slot = 0; slot < num_slots_; ++slot)
        logits[slot * kept + i] += rows_bias_[i];
    }
  });
  LogitsView view;
  view.data = logits.data();
  view.rows = num_slots_;
  view.columns = kept;
  view.column_stride = sizeof(float);
  view.row_stride = static_cast<std::ptrdiff_t>(kept * sizeof(float));
  TopK best = SelectTopK(view, {top_k, true, threads});
  for (TokenId& id : best.token_ids) id = token_ids_[static_cast<std::size_t>(id)];
  return best;
}

}  // namespace lattice_bpd
