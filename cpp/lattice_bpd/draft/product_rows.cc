#include "lattice_bpd/draft/product_rows.h"

#include "lattice_bpd/base/score_grid.h"

namespace lattice_bpd {

void ProductRows::Build(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                        double alpha) {
  sausage_ = &sausage;
  lm_ = lm;
  alpha_ = alpha;
  hits_.clear();
  rows_.clear();
  row_begin_.assign(1, 0);
  AddRoot(0);
  AddStartRows(start);
  const auto num_slots = static_cast<std::uint32_t>(sausage.num_slots());
  for (std::uint32_t slot = 0; slot < num_slots; ++slot) {
    row_begin_.push_back(static_cast<std::uint32_t>(rows_.size()));
    if (slot + 1 == num_slots) break;
    AddRoot(slot + 1);
    for (std::uint32_t r = row_begin_[slot]; r < row_begin_[slot + 1]; ++r) {
      ExtendRow(slot, rows_[r]);
    }
  }
}

double ProductRows::Scaled(float natural_log) const {
  return ToScoreGrid(alpha_ * static_cast<double>(natural_log));
}

double ProductRows::HeadScore(std::uint32_t slot, std::uint32_t lane) const {
  return sausage_->all_masked() ? 0.0 : ToScoreGrid(sausage_->scores(slot)[lane]);
}

// The empty history: every symbol has a unigram, so all candidates are hits.
void ProductRows::AddRoot(std::uint32_t slot) {
  const auto begin = static_cast<std::uint32_t>(hits_.size());
  for (std::uint32_t lane = 0; lane < sausage_->width(slot); ++lane) {
    const auto symbol = static_cast<Symbol>(sausage_->token_ids(slot)[lane]);
    const double lm_score = lm_ == nullptr ? 0.0 : Scaled(lm_->levels()[0].LogProb(symbol));
    hits_.push_back({lane, symbol, 0, 0, false, HeadScore(slot, lane) + lm_score, 0.0});
  }
  const auto root = static_cast<std::uint32_t>(rows_.size());
  rows_.push_back({begin, static_cast<std::uint32_t>(hits_.size()), root, 0, 0.0});
}

// The suffixes of the context. One without hits is followed by none with any.
void ProductRows::AddStartRows(const LmState& start) {
  start_row_ = 0;
  start_constant_ = 0.0;
  for (std::uint32_t length = 1; length <= start.length; ++length) {
    const std::uint32_t node = start.nodes[length - 1];
    if (rows_[start_row_].length + 1 == length && AddRow(0, length, node, start_row_)) {
      start_row_ = static_cast<std::uint32_t>(rows_.size()) - 1;
    } else {
      start_constant_ += Scaled(lm_->levels()[length - 1].Backoff(node));
    }
  }
}

// Gives the hits of a row before `slot` their targets, which are rows before slot + 1.
void ProductRows::ExtendRow(std::uint32_t slot, const ProductRow row) {
  const bool is_history =
      lm_ != nullptr && row.length + 1 < static_cast<std::uint32_t>(lm_->order());
  for (std::uint32_t h = row.hits_begin; h < row.hits_end; ++h) {
    const std::uint32_t node = hits_[h].node;
    const ProductHit suffix = SuffixOf(slot, row.length, hits_[h]);
    const bool added =
        is_history && suffix.own_row && AddRow(slot + 1, row.length + 1, node, suffix.target);
    ProductHit& hit = hits_[h];
    hit.target = added ? static_cast<std::uint32_t>(rows_.size()) - 1 : suffix.target;
    hit.own_row = added;
    hit.constant = suffix.constant;
    if (is_history && !added) hit.constant += Scaled(lm_->levels()[row.length].Backoff(node));
  }
}

// The hit of the n-gram without its first symbol; a unigram's is the empty history, the root.
ProductHit ProductRows::SuffixOf(std::uint32_t slot, std::uint32_t length,
                                 const ProductHit& hit) const {
  if (length > 0) return hits_[hit.suffix_hit];
  ProductHit root = hit;
  root.target = row_begin_[slot + 1];
  root.own_row = true;
  root.constant = 0.0;
  return root;
}

// Looks among the n-grams of a history of `length` symbols for the candidates that its suffix's
// row hit: others cannot be there, since the model has every n-gram's suffix.
bool ProductRows::AddRow(std::uint32_t slot, std::uint32_t length, std::uint32_t node,
                         std::uint32_t suffix_row) {
  const auto [first, last] = lm_->Children(length, node);
  if (first == last) return false;
  const PackedLevel& level = lm_->levels()[length];
  const auto hits_begin = static_cast<std::uint32_t>(hits_.size());
  const ProductRow suffix = rows_[suffix_row];
  for (std::uint32_t h = suffix.hits_begin; h < suffix.hits_end; ++h) {
    const std::uint32_t lane = hits_[h].lane;
    const auto symbol = static_cast<Symbol>(sausage_->token_ids(slot)[lane]);
    const std::uint32_t found = level.Find(first, last, symbol);
    if (found == kNoNode) continue;
    const double score = HeadScore(slot, lane) + Scaled(level.LogProb(found));
    hits_.push_back({lane, found, h, 0, false, score, 0.0});
  }
  const auto hits_end = static_cast<std::uint32_t>(hits_.size());
  if (hits_end == hits_begin) return false;
  const double backoff = Scaled(lm_->levels()[length - 1].Backoff(node));
  rows_.push_back({hits_begin, hits_end, suffix_row, length, backoff});
  return true;
}

void ProductRows::ReadLanes(std::uint32_t r, std::vector<ProductLane>* lanes) const {
  const ProductRow& row = rows_[r];
  if (row.length == 0) {
    lanes->resize(row.hits_end - row.hits_begin);
  } else {
    ReadLanes(row.suffix, lanes);
    for (ProductLane& lane : *lanes) lane.backoffs += row.backoff;
  }
  // A hit replaces what backing off would give, better or worse.
  for (std::uint32_t h = row.hits_begin; h < row.hits_end; ++h) (*lanes)[hits_[h].lane] = {h, 0.0};
}

}  // namespace lattice_bpd
