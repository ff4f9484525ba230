// The lattices of a batch, from whatever a caller has: Sausages, or an array of candidates as
// SelectTopK or a GPU's top-k gives them, of which each lattice is built when its turn comes.
#ifndef LATTICE_BPD_LATTICE_LATTICE_BATCH_H_
#define LATTICE_BPD_LATTICE_LATTICE_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lattice_bpd/lattice/sausage.h"

namespace lattice_bpd {

// A (batch, slots, top_k) array of candidates, borrowed.
struct CandidatesView {
  const TokenId* token_ids = nullptr;
  const float* scores = nullptr;
  std::size_t batch = 0;
  std::size_t num_slots = 0;
  std::size_t top_k = 0;
  const std::int32_t* max_slots = nullptr;  // of each lattice, which has no more; null: all slots
  float temperature = 1.0f;                 // above 0; divides scores
};

// Borrows what it is made from.
class LatticeBatch {
 public:
  LatticeBatch(const CandidatesView& candidates);  // NOLINT: a view, to be passed like one

  LatticeBatch(const std::vector<Sausage>& sausages);         // NOLINT
  LatticeBatch(const std::vector<const Sausage*>& sausages);  // NOLINT

  std::size_t size() const { return size_; }

  // The width of arrays that hold paths: no lattice has more slots. A lattice may have fewer.
  std::size_t num_slots() const { return num_slots_; }

  // Candidates of all lattices together.
  std::size_t num_candidates() const { return num_candidates_; }

  // Lattice b. `scratch` is where it is built if need be. Throws as Sausage::AddSlot.
  const Sausage& Get(std::size_t b, Sausage* scratch) const;

 private:
  void CountSausages();

  CandidatesView candidates_;
  std::vector<const Sausage*> sausages_;
  std::size_t size_ = 0;
  std::size_t num_slots_ = 0;
  std::size_t num_candidates_ = 0;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_LATTICE_BATCH_H_
