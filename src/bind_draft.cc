#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/draft_batch.h"
#include "lattice_bpd/draft/fused_engine.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using LmOrNone = std::optional<std::shared_ptr<BackoffLm>>;

const BackoffLm* Get(const LmOrNone& lm) { return lm ? lm->get() : nullptr; }

// token_ids (batch, num_drafts, slots), scores (batch, num_drafts), counts (batch,).
using DraftArrays = std::tuple<py::array_t<TokenId>, py::array_t<float>, py::array_t<std::int32_t>>;

DraftArrays ToArrays(DraftBatch batch, int num_drafts) {
  const auto rows = static_cast<py::ssize_t>(batch.counts.size());
  const auto slots = static_cast<py::ssize_t>(batch.num_slots);
  return DraftArrays(ToArray(std::move(batch.token_ids), {rows, num_drafts, slots}),
                     ToArray(std::move(batch.scores), {rows, num_drafts}),
                     ToArray(std::move(batch.counts), {rows}));
}

// Candidates (batch, slots, top_k) as SelectTopK or a GPU's top-k gives them.
DraftArrays RescoreCandidates(const Array<TokenId>& token_ids, const Array<float>& scores,
                              const LmOrNone& lm, const Array<TokenId>& contexts,
                              const Array<std::int64_t>& offsets, bool bos, int num_drafts,
                              double alpha, const std::string& engine) {
  const bool same_shape = token_ids.ndim() == 3 && scores.ndim() == 3 &&
                          std::equal(token_ids.shape(), token_ids.shape() + 3, scores.shape());
  if (!same_shape) {
    throw ValueError("candidates: token_ids and scores must both be (batch, slots, top_k)");
  }
  const DraftOptions options{num_drafts, alpha, ParseEngine(engine)};
  DraftBatch batch;
  {
    const py::gil_scoped_release release;
    const std::vector<Sausage> sausages = BuildSausages(
        token_ids.data(), scores.data(), static_cast<std::size_t>(token_ids.shape(0)),
        static_cast<std::size_t>(token_ids.shape(1)), static_cast<std::size_t>(token_ids.shape(2)));
    batch = FindDraftBatch(sausages, Get(lm), {ToSpan(contexts), ToSpan(offsets), bos}, options);
  }
  return ToArrays(std::move(batch), num_drafts);
}

DraftArrays RescoreSausages(const std::vector<Sausage>& sausages, const LmOrNone& lm,
                            const Array<TokenId>& contexts, const Array<std::int64_t>& offsets,
                            bool bos, int num_drafts, double alpha, const std::string& engine) {
  const DraftOptions options{num_drafts, alpha, ParseEngine(engine)};
  DraftBatch batch;
  {
    const py::gil_scoped_release release;
    batch = FindDraftBatch(sausages, Get(lm), {ToSpan(contexts), ToSpan(offsets), bos}, options);
  }
  return ToArrays(std::move(batch), num_drafts);
}

}  // namespace

void BindDraft(py::module_& m) {
  m.def("rescore_candidates", &RescoreCandidates, py::arg("token_ids").noconvert(),
        py::arg("scores").noconvert(), py::arg("lm"), py::arg("contexts").noconvert(),
        py::arg("offsets").noconvert(), py::arg("bos"), py::arg("num_drafts"), py::arg("alpha"),
        py::arg("engine"));
  m.def("rescore_sausages", &RescoreSausages, py::arg("sausages"), py::arg("lm"),
        py::arg("contexts").noconvert(), py::arg("offsets").noconvert(), py::arg("bos"),
        py::arg("num_drafts"), py::arg("alpha"), py::arg("engine"));
  m.def("fused_instruction_sets", &FusedInstructionSets);
  m.def("set_fused_instruction_set", &SetFusedInstructionSet, py::arg("name"));
}

}  // namespace lattice_bpd
