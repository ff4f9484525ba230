#include "lattice_bpd/lattice/lattice_batch.h"

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {

LatticeBatch::LatticeBatch(const CandidatesView& candidates)
    : candidates_(candidates),
      size_(candidates.batch),
      num_slots_(candidates.num_slots),
      num_candidates_(candidates.batch * candidates.num_slots * candidates.top_k) {}

LatticeBatch::LatticeBatch(const std::vector<Sausage>& sausages) : size_(sausages.size()) {
  for (const Sausage& sausage : sausages) sausages_.push_back(&sausage);
  CheckSausages();
}

LatticeBatch::LatticeBatch(const std::vector<const Sausage*>& sausages)
    : sausages_(sausages), size_(sausages.size()) {
  CheckSausages();
}

void LatticeBatch::CheckSausages() {
  if (size_ == 0) return;
  num_slots_ = sausages_[0]->num_slots();
  for (std::size_t b = 0; b < size_; ++b) {
    const Sausage& sausage = *sausages_[b];
    if (sausage.num_slots() != num_slots_) {
      throw ValueError(StrCat("lattice ", b, " has ", sausage.num_slots(), " slots, lattice 0 ",
                              num_slots_, "; rescore lattices of one length at a time"));
    }
    num_candidates_ += sausage.num_candidates();
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
