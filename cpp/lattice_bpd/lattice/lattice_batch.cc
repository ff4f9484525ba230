#include "lattice_bpd/lattice/lattice_batch.h"

#include <algorithm>

namespace lattice_bpd {

LatticeBatch::LatticeBatch(const CandidatesView& candidates)
    : candidates_(candidates),
      size_(candidates.batch),
      num_slots_(candidates.num_slots),
      num_candidates_(candidates.batch * candidates.num_slots * candidates.top_k) {}

LatticeBatch::LatticeBatch(const std::vector<Sausage>& sausages) : size_(sausages.size()) {
  for (const Sausage& sausage : sausages) sausages_.push_back(&sausage);
  CountSausages();
}

LatticeBatch::LatticeBatch(const std::vector<const Sausage*>& sausages)
    : sausages_(sausages), size_(sausages.size()) {
  CountSausages();
}

void LatticeBatch::CountSausages() {
  for (const Sausage* sausage : sausages_) {
    num_slots_ = std::max(num_slots_, sausage->num_slots());
    num_candidates_ += sausage->num_candidates();
  }
}

const Sausage& LatticeBatch::Get(std::size_t b, Sausage* scratch) const {
  if (!sausages_.empty()) return *sausages_[b];
  scratch->Clear();
  const std::size_t k = candidates_.top_k;
  const std::size_t slots =
      candidates_.max_slots == nullptr
          ? num_slots_
          : std::min(num_slots_, static_cast<std::size_t>(std::max(candidates_.max_slots[b], 0)));
  thread_local std::vector<float> divided;
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const std::size_t at = (b * num_slots_ + slot) * k;
    Span<float> scores = {candidates_.scores + at, k};
    if (candidates_.temperature != 1.0f) {
      divided.resize(k);
      for (std::size_t i = 0; i < k; ++i) divided[i] = scores[i] / candidates_.temperature;
      scores = divided;
    }
    scratch->AddSlot({candidates_.token_ids + at, k}, scores);
  }
  return *scratch;
}

}  // namespace lattice_bpd
