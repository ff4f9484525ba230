#include "lattice_bpd/mixture/mixture.h"

#include <cmath>
#include <utility>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

std::vector<SourceKind> SourcesOf(const Mixture::Options& options) {
  std::vector<SourceKind> kinds;
  if (options.has_heads) kinds.push_back(SourceKind::kHeads);
  kinds.insert(kinds.end(), options.lms.size(), SourceKind::kLm);
  if (options.has_text) kinds.push_back(SourceKind::kText);
  if (options.store != nullptr) kinds.push_back(SourceKind::kStore);
  if (options.has_target) kinds.push_back(SourceKind::kTarget);
  if (kinds.empty()) throw ValueError("Mixture: no source; expected heads, an LM, text or a store");
  if (options.lms.size() > kMaxMixtureLms) {
    throw ValueError(StrCat("Mixture: ", options.lms.size(), " LMs; expected at most ",
                            kMaxMixtureLms, "; merge some with ngram merge"));
  }
  return kinds;
}

}  // namespace

Mixture::Mixture(Options options, GateWeights theta)
    : options_(std::move(options)), layout_(SourcesOf(options_)), theta_(std::move(theta)) {
  const auto expected = static_cast<std::size_t>(layout_.num_rows() * layout_.num_bins());
  if (theta_.empty()) theta_.assign(expected, 0.0);
  if (theta_.size() != expected) {
    throw ValueError(StrCat("Mixture: ", theta_.size(), " gate weights; expected ", expected, " (",
                            layout_.num_rows(), " rows, ", layout_.num_bins(), " bins)"));
  }
  for (const double weight : theta_) {
    if (!std::isfinite(weight)) throw ValueError("Mixture: a gate weight is not finite");
  }
  for (const auto& lm : options_.lms) lms_.emplace_back(lm);
}

}  // namespace lattice_bpd
