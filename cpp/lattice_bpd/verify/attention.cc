#include "lattice_bpd/verify/attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/half.h"
#include "lattice_bpd/base/instruction_sets.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/verify/attention_task.h"

namespace lattice_bpd {
namespace {

constexpr float kUnseen = -1e30f;  // masks hide positions by the lowest number of their type
constexpr std::size_t kMostLanes = 16;

InstructionSets<AttentionKernel>& Sets() {
  static InstructionSets<AttentionKernel> sets{AttentionAvx512(), AttentionAvx2(),
                                               AttentionPlain()};
  return sets;
}

// What a mask adds to the score of a position; NoMask reads nothing.
struct BoolMask {
  using Number = std::uint8_t;
  static float Read(const Number* mask, std::size_t p) { return mask[p] ? 0.0f : kUnseen; }
};
struct FloatMask {
  using Number = float;
  static float Read(const Number* mask, std::size_t p) { return mask[p]; }
};
struct BFloat16Mask {
  using Number = std::uint16_t;
  static float Read(const Number* mask, std::size_t p) { return BFloat16ToFloat(mask[p]); }
};
struct NoMask {
  using Number = std::uint8_t;
  static float Read(const Number*, std::size_t) { return 0.0f; }
};

template <typename Mask>
void Apply(const AttentionTask& task, std::size_t query, float* scores) {
  const auto* mask = static_cast<const typename Mask::Number*>(task.masks[query]);
  for (std::size_t p = 0; p < task.positions; ++p) {
    const float added = Mask::Read(mask, p);
    scores[p] = added > kUnseen ? scores[p] + added : -std::numeric_limits<float>::infinity();
  }
}

struct Range {
  std::size_t first, end;
};

template <typename Mask>
class Tasks {
 public:
  explicit Tasks(const AttentionCall& call)
      : call_(call), group_(call.heads / call.kv_heads), number_(NumberSize()) {
    const std::size_t queries = group_ * call.queries;
    blocks_ = (queries + AttentionTask::kQueries - 1) / AttentionTask::kQueries;
    per_block_ = (queries + blocks_ - 1) / blocks_;
    const std::size_t mask_rows = call.mask_row_stride == 0 ? 1 : call.rows;
    for (std::size_t i = 0; i < mask_rows * call.queries; ++i) seen_.push_back(Find(i));
  }

  std::size_t size() const { return call_.rows * call_.kv_heads * blocks_; }

  void Run(std::size_t number) const {
    const std::size_t block = number % blocks_, head = number / blocks_ % call_.kv_heads;
    const std::size_t row = number / blocks_ / call_.kv_heads;
    const std::size_t begin = block * per_block_;
    AttentionTask task;
    task.queries = std::min(per_block_, group_ * call_.queries - begin);
    task.padded_queries = (task.queries + 3) / 4 * 4;
    Range seen = {call_.positions, 0};
    for (std::size_t i = 0; i < task.queries; ++i) {
      const Range& own = seen_[MaskIndex(row, (begin + i) / group_)];
      seen.first = std::min(seen.first, own.first);
      seen.end = std::max(seen.end, own.end);
    }
    seen.first = std::min(seen.first, seen.end);
    task.positions = seen.end - seen.first;
    task.width = (task.positions + kMostLanes - 1) / kMostLanes * kMostLanes;
    task.size = call_.size;
    task.scale = call_.scale;
    task.mask = &Apply<Mask>;
    task.keys = At(call_.key, row, head, seen.first);
    task.values = At(call_.value, row, head, seen.first);
    task.key_stride = call_.key.token_stride;
    task.value_stride = call_.value.token_stride;
    for (std::size_t i = 0; i < task.queries; ++i) {
      const std::size_t token = (begin + i) / group_,
                        query_head = head * group_ + (begin + i) % group_;
      task.query[i] = At(call_.query, row, query_head, token);
      const std::size_t place =
          ((row * call_.queries + token) * call_.heads + query_head) * call_.size;
      task.outs[i] = static_cast<char*>(call_.out) + place * number_;
      task.masks[i] = MaskOf(row, token) + seen.first;
    }
    thread_local std::vector<float> scratch;
    ChosenKernel().attend(task, call_.type, &scratch);
  }

 private:
  std::size_t NumberSize() const { return call_.type == FloatType::kFloat32 ? 4 : 2; }

  const void* At(const HeadsView& view, std::size_t row, std::size_t head,
                 std::size_t token) const {
    const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(row) * view.row_stride +
                                 static_cast<std::ptrdiff_t>(head) * view.head_stride +
                                 static_cast<std::ptrdiff_t>(token) * view.token_stride;
    return static_cast<const char*>(view.data) + place * static_cast<std::ptrdiff_t>(number_);
  }

  std::size_t MaskIndex(std::size_t row, std::size_t query) const {
    return (call_.mask_row_stride == 0 ? 0 : row * call_.queries) + query;
  }

  const typename Mask::Number* MaskOf(std::size_t row, std::size_t query) const {
    return static_cast<const typename Mask::Number*>(call_.mask) +
           static_cast<std::ptrdiff_t>(row) * call_.mask_row_stride +
           static_cast<std::ptrdiff_t>(query) * call_.mask_query_stride;
  }

  Range Find(std::size_t index) const {
    const auto* mask = MaskOf(index / call_.queries, index % call_.queries);
    const auto hidden = [&](std::size_t p) { return Mask::Read(mask, p) <= kUnseen; };
    Range seen = {0, call_.positions};
    while (seen.end > 0 && hidden(seen.end - 1)) --seen.end;
    while (seen.first < seen.end && hidden(seen.first)) ++seen.first;
    return seen;
  }

  const AttentionCall& call_;
  const std::size_t group_, number_;
  std::size_t blocks_, per_block_;
  std::vector<Range> seen_;  // of the mask's rows and queries
};

template <typename Mask>
void AttendWith(const AttentionCall& call, int num_threads) {
  const Tasks<Mask> tasks(call);
  RunParallel(tasks.size(), num_threads, [&](std::size_t i) { tasks.Run(i); });
}

}  // namespace

void Attend(const AttentionCall& call, int num_threads) {
  if (call.size == 0 || call.size % kMostLanes != 0 || call.kv_heads == 0 ||
      call.heads % call.kv_heads != 0) {
    throw ValueError(StrCat("attend: heads of ", call.size, " numbers, ", call.heads,
                            " of them on ", call.kv_heads, "; expected multiples of ", kMostLanes,
                            " and of the key heads"));
  }
  if (call.rows * call.heads * call.queries == 0) return;
  if (call.mask_type == AttentionMask::kNone) {
    AttendWith<NoMask>(call, num_threads);
  } else if (call.mask_type == AttentionMask::kBool) {
    AttendWith<BoolMask>(call, num_threads);
  } else if (call.type == FloatType::kFloat32) {
    AttendWith<FloatMask>(call, num_threads);
  } else {
    AttendWith<BFloat16Mask>(call, num_threads);
  }
}

const AttentionKernel& ChosenKernel() { return Sets().chosen(); }

std::vector<std::string> AttentionInstructionSets() { return Sets().Names(); }

void SetAttentionInstructionSet(const std::string& name) { Sets().Choose(name); }

}  // namespace lattice_bpd
