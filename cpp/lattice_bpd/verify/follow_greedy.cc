#include "lattice_bpd/verify/follow_greedy.h"

#include <algorithm>
#include <array>
#include <limits>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kLanes = 16;

// The greatest value, NaN if there is one. Lanes have no order among each other, so that the
// compiler may keep them in vectors.
float Maximum(Span<float> values) {
  std::array<float, kLanes> best;
  std::array<std::int32_t, kLanes> is_nan{};
  best.fill(-std::numeric_limits<float>::infinity());
  const float* value = values.data();
  const std::size_t whole = values.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float x = value[i + lane];
      best[lane] = x > best[lane] ? x : best[lane];
      is_nan[lane] |= x != x ? 1 : 0;
    }
  }
  for (std::size_t i = whole; i < values.size(); ++i) {
    best[0] = value[i] > best[0] ? value[i] : best[0];
    is_nan[0] |= value[i] != value[i] ? 1 : 0;
  }
  if (std::find(is_nan.begin(), is_nan.end(), 1) != is_nan.end()) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return *std::max_element(best.begin(), best.end());
}

}  // namespace

std::int64_t Argmax(Span<float> values) {
  const float best = Maximum(values);
  const float* position = std::find(values.begin(), values.end(), best);
  return position == values.end() ? -1 : position - values.begin();
}

Followed FollowGreedy(const PrefixTree& tree, const LogitRows& logits, const NodeRows& rows) {
  const Span<std::int64_t> listed = rows.listed;
  if ((!listed.empty() && listed.size() != tree.size()) || tree.size() == 0) {
    throw ValueError(StrCat("found ", listed.size(), " rows of logits for a tree of ", tree.size(),
                            " nodes; expected one for each, and one node or more"));
  }
  Followed followed;
  NodeNumber node = 0;
  while (node != kNoParent) {
    followed.end = listed.empty() ? rows.first + node : listed[static_cast<std::size_t>(node)];
    if (followed.end < 0 || static_cast<std::size_t>(followed.end) >= logits.rows) {
      throw ValueError(
          StrCat("node ", node, " has row ", followed.end, "; expected 0..", logits.rows, " - 1"));
    }
    const std::size_t begin = static_cast<std::size_t>(followed.end) * logits.vocab_size;
    const std::int64_t token = Argmax({logits.data + begin, logits.vocab_size});
    if (token < 0) {
      throw ValueError(
          "verify_drafts: the target's logits hold NaN; expected numbers; check its weights, and "
          "its dtype (float16 overflows on some models: use bfloat16 or float32)");
    }
    followed.nodes.push_back(node);
    followed.token_ids.push_back(token);
    node = tree.Child(node, token);
  }
  return followed;
}

}  // namespace lattice_bpd
