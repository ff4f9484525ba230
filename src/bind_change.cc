// LMs made from LMs: pruning, quantising, interpolation.
#include <memory>

#include "bindings.h"
#include "lattice_bpd/lm/quantise.h"
#include "lattice_bpd/lm/unpack.h"
#include "lattice_bpd/train/interpolate.h"
#include "lattice_bpd/train/prune.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using GuardLongCall = py::call_guard<LongCall>;

std::shared_ptr<BackoffLm> Pack(const Trie& trie) {
  return std::const_pointer_cast<BackoffLm>(BackoffLm::FromTrie(trie));
}

LmList ListOf(const std::vector<std::shared_ptr<BackoffLm>>& lms) {
  return {lms.begin(), lms.end()};
}

}  // namespace

void BindChange(py::module_& m) {
  m.def(
      "count_prunable", [](const BackoffLm& lm) { return CountPrunable(UnpackLm(lm)); },
      py::arg("lm"), GuardLongCall());
  m.def(
      "prune_by_entropy",
      [](const BackoffLm& lm, double theta, int threads) {
        return Pack(PruneByEntropy(UnpackLm(lm), theta, threads));
      },
      py::arg("lm"), py::arg("theta"), py::arg("threads"), GuardLongCall());
  m.def(
      "prune_to_size",
      [](const BackoffLm& lm, std::uint64_t target, int threads) {
        return Pack(PruneToSize(UnpackLm(lm), target, threads));
      },
      py::arg("lm"), py::arg("target"), py::arg("threads"), GuardLongCall());
  m.def(
      "prune_by_estimated_count",
      [](const BackoffLm& lm, const std::vector<std::uint64_t>& min_counts, int threads) {
        return Pack(PruneByEstimatedCount(UnpackLm(lm), min_counts, threads));
      },
      py::arg("lm"), py::arg("min_counts"), py::arg("threads"), GuardLongCall());
  m.def(
      "prune_by_vocabulary",
      [](const BackoffLm& lm, const Array<TokenId>& kept, int threads) {
        const Span<TokenId> ids = ToSpan(kept);
        const LongCall guard;
        return Pack(PruneByVocabulary(UnpackLm(lm), ids, threads));
      },
      py::arg("lm"), py::arg("kept").noconvert(), py::arg("threads"));
  m.def(
      "quantise",
      [](const BackoffLm& lm, int bits) {
        return std::const_pointer_cast<BackoffLm>(QuantiseLm(lm, bits));
      },
      py::arg("lm"), py::arg("bits"), GuardLongCall());
  m.def(
      "interpolate",
      [](const std::vector<std::shared_ptr<BackoffLm>>& lms, const std::vector<double>& weights,
         int threads) { return Pack(InterpolateLms(ListOf(lms), weights, threads)); },
      py::arg("lms"), py::arg("weights"), py::arg("threads"), GuardLongCall());
  m.def(
      "tune_weights",
      [](const std::vector<std::shared_ptr<BackoffLm>>& lms, const Array<TokenId>& token_ids,
         const Array<std::int64_t>& offsets, int threads) {
        const TokenSequences heldout{ToSpan(token_ids), ToSpan(offsets)};
        const LongCall guard;
        return TuneWeights(ListOf(lms), heldout, threads);
      },
      py::arg("lms"), py::arg("token_ids").noconvert(), py::arg("offsets").noconvert(),
      py::arg("threads"));
}

}  // namespace lattice_bpd
