// The product of a sausage lattice and an LM in rows instead of states: step 1 of docs/search.md
// in plain form, for searches that want every path's mass and not only the best ones.
//
// A state of the product is a place in the lattice and an LM history. Only histories with hits (an
// n-gram of the LM that ends in a candidate of the next slot) become rows; any other is the row of
// its longest suffix with hits, plus a constant: the backoff weights on the way there.
#ifndef LATTICE_BPD_DRAFT_PRODUCT_ROWS_H_
#define LATTICE_BPD_DRAFT_PRODUCT_ROWS_H_

#include <utility>
#include <vector>

#include "lattice_bpd/lattice/sausage.h"
#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

struct ProductHit {
  std::uint32_t lane;        // the candidate's place in its slot
  std::uint32_t node;        // of the n-gram, in the level of the row's length
  std::uint32_t suffix_hit;  // the same lane's hit in the suffix's row
  std::uint32_t target;      // the row behind this candidate; none behind the last slot
  bool own_row;              // the target's history is this n-gram itself
  double score;              // head score + alpha * ln P, on the grid
  double constant;           // backoffs paid on the way to the target
};

struct ProductRow {
  std::uint32_t hits_begin;
  std::uint32_t hits_end;
  std::uint32_t suffix;  // the row of the history without its first symbol; its own for the root
  std::uint32_t length;  // symbols of the history
  double backoff;        // alpha * ln backoff of the history, on the grid
};

// What a row does with one candidate: the hit that applies, and the backoffs paid to reach it.
struct ProductLane {
  std::uint32_t hit;
  double backoffs;

  // Score of the candidate and of the way to its target.
  double Score(const std::vector<ProductHit>& hits) const {
    return backoffs + hits[hit].score + hits[hit].constant;
  }
};

// Keeps its memory from one Build to the next.
class ProductRows {
 public:
  // `lm` may be null. Where the sausage is masked altogether its head scores count as 0.
  // Cost: a search in the LM for each history with n-grams and each candidate that its suffix hit.
  void Build(const Sausage& sausage, const BackoffLm* lm, const LmState& start, double alpha);

  // Where the context leads: a row, and the backoffs paid on the way there.
  std::uint32_t start_row() const { return start_row_; }
  double start_constant() const { return start_constant_; }

  // The rows before slot j, by rising length: [first, second).
  std::pair<std::uint32_t, std::uint32_t> RowsBefore(std::uint32_t slot) const {
    return {row_begin_[slot], row_begin_[slot + 1]};
  }
  const std::vector<ProductHit>& hits() const { return hits_; }

  // Every candidate of the slot behind row r, by lane.
  void ReadLanes(std::uint32_t r, std::vector<ProductLane>* lanes) const;

 private:
  void AddRoot(std::uint32_t slot);
  void AddStartRows(const LmState& start);
  void ExtendRow(std::uint32_t slot, ProductRow row);
  ProductHit SuffixOf(std::uint32_t slot, std::uint32_t length, const ProductHit& hit) const;
  bool AddRow(std::uint32_t slot, std::uint32_t length, std::uint32_t node,
              std::uint32_t suffix_row);
  double Scaled(float natural_log) const;
  double HeadScore(std::uint32_t slot, std::uint32_t lane) const;

  const Sausage* sausage_ = nullptr;
  const BackoffLm* lm_ = nullptr;
  double alpha_ = 0.0;
  std::uint32_t start_row_ = 0;
  double start_constant_ = 0.0;
  std::vector<ProductHit> hits_;
  std::vector<ProductRow> rows_;
  std::vector<std::uint32_t> row_begin_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_PRODUCT_ROWS_H_
