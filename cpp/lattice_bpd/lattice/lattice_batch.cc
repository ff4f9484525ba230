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
  for (std::size_t slot = 0; slot < num_slots_; ++slot) {
    const std::size_t at = (b * num_slots_ + slot) * candidates_.top_k;
    scratch->AddSlot({candidates_.token_ids + at, candidates_.top_k},
                     {candidates_.scores + at, candidates_.top_k});
  }
  return *scratch;
}

}  // namespace lattice_bpd
