#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/chain_batch.h"
#include "lattice_bpd/draft/draft_batch.h"
#include "lattice_bpd/draft/fst_drafts.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "lattice_bpd/draft/packed_heads.h"
#include "lattice_bpd/draft/sample_batch.h"
#include "lattice_bpd/draft/tree_batch.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

// token_ids (batch, num_drafts, slots), scores (batch, num_drafts), counts (batch,).
using DraftArrays = std::tuple<py::array_t<TokenId>, py::array_t<float>, py::array_t<std::int32_t>>;

// token_ids, parents, depths, log_probs (batch, max_nodes), counts (batch,), attention_mask
// (batch, max_nodes, max_nodes) of 0 and 1, leaf_paths (batch, leaves, slots).
using TreeArrays =
    std::tuple<py::array_t<TokenId>, py::array_t<std::int32_t>, py::array_t<std::int32_t>,
               py::array_t<float>, py::array_t<std::int32_t>, py::array_t<std::uint8_t>,
               py::array_t<std::int32_t>>;

// token_ids, parents, depths, log_probs (batch, max_nodes), counts (batch,), slot_token_ids
// (batch, slots, width), child_probs (batch, max_nodes + 1, width).
using SampleArrays =
    std::tuple<py::array_t<TokenId>, py::array_t<std::int32_t>, py::array_t<std::int32_t>,
               py::array_t<float>, py::array_t<std::int32_t>, py::array_t<TokenId>,
               py::array_t<double>>;

// token_ids (batch, 1, slots), accept_lengths (batch, 1), counts (batch,), log_probs of prefixes
// (batch, 1, slots).
using ChainArrays = std::tuple<py::array_t<TokenId>, py::array_t<float>, py::array_t<std::int32_t>,
                               py::array_t<float>>;

// Keys (batch,), positions (batch,), whether positions and tokens have the target's noise, and the
// sharpness that it is taken in with.
using Noise = std::tuple<Array<std::uint64_t>, Array<std::uint64_t>, bool, double>;

// Token ids and log probabilities (slots, top_k).
using Candidates = std::tuple<py::array_t<TokenId>, py::array_t<float>>;

PackedHeads MakePackedHeads(std::size_t num_slots, std::size_t hidden_size, std::size_t inner_size,
                            const Array<float>& inner, const Array<float>& inner_bias,
                            const Array<float>& outer, const Array<float>& outer_bias,
                            const Array<float>& rows, const Array<float>& rows_bias,
                            const Array<TokenId>& token_ids) {
  return PackedHeads({num_slots, hidden_size, inner_size, ToSpan(inner), ToSpan(inner_bias),
                      ToSpan(outer), ToSpan(outer_bias), ToSpan(rows), ToSpan(rows_bias),
                      ToSpan(token_ids)});
}

Candidates CandidatesOf(const PackedHeads& heads, const Array<float>& hidden,
                        const Array<float>& embedding, int top_k, int threads) {
  TopK best;
  {
    const py::gil_scoped_release release;
    best = heads.Find(ToSpan(hidden), ToSpan(embedding), top_k, threads);
  }
  const auto slots = static_cast<py::ssize_t>(best.scores.size()) / top_k;
  return {ToArray(std::move(best.token_ids), {slots, top_k}),
          ToArray(std::move(best.scores), {slots, top_k})};
}

DraftArrays ToArrays(DraftBatch batch, int num_drafts) {
  const auto rows = static_cast<py::ssize_t>(batch.counts.size());
  const auto slots = static_cast<py::ssize_t>(batch.num_slots);
  return DraftArrays(ToArray(std::move(batch.token_ids), {rows, num_drafts, slots}),
                     ToArray(std::move(batch.scores), {rows, num_drafts}),
                     ToArray(std::move(batch.counts)));
}

TreeArrays ToArrays(TreeBatch batch, int max_nodes, std::size_t num_slots) {
  const auto rows = static_cast<py::ssize_t>(batch.counts.size());
  const auto leaves = static_cast<py::ssize_t>(batch.max_leaves);
  const auto slots = static_cast<py::ssize_t>(num_slots);
  return TreeArrays(ToArray(std::move(batch.token_ids), {rows, max_nodes}),
                    ToArray(std::move(batch.parents), {rows, max_nodes}),
                    ToArray(std::move(batch.depths), {rows, max_nodes}),
                    ToArray(std::move(batch.log_probs), {rows, max_nodes}),
                    ToArray(std::move(batch.counts)),
                    ToArray(std::move(batch.attention_mask), {rows, max_nodes, max_nodes}),
                    ToArray(std::move(batch.leaf_paths), {rows, leaves, slots}));
}

DraftArrays Rescore(const Lattices& lattices, const LmOrNone& lm, const Array<TokenId>& contexts,
                    const Array<std::int64_t>& offsets, bool bos, int num_drafts, double alpha,
                    const std::string& engine, int threads, const std::string& normalization) {
  const LatticeBatch batch = ToBatch(lattices);
  const ContextsView view = {ToSpan(contexts), ToSpan(offsets), bos};
  const DraftOptions options = {num_drafts, alpha, ParseEngine(engine),
                                ParseNormalization(normalization)};
  CheckNumDrafts(num_drafts);  // before arrays of that size
  const auto rows = static_cast<py::ssize_t>(batch.size());
  const auto slots = static_cast<py::ssize_t>(batch.num_slots());
  py::array_t<TokenId> token_ids({rows, py::ssize_t{num_drafts}, slots});
  py::array_t<float> scores({rows, py::ssize_t{num_drafts}});
  py::array_t<std::int32_t> counts(rows);
  const DraftRows out{token_ids.mutable_data(), scores.mutable_data(), counts.mutable_data()};
  {
    const py::gil_scoped_release release;
    FindDraftBatch(batch, Get(lm), view, options, threads, out);
  }
  return {std::move(token_ids), std::move(scores), std::move(counts)};
}

TreeArrays FindTrees(const Lattices& lattices, const LmOrNone& lm, const Array<TokenId>& contexts,
                     const Array<std::int64_t>& offsets, bool bos, int max_nodes, double alpha,
                     int threads, const std::string& normalization) {
  const LatticeBatch batch = ToBatch(lattices);
  const ContextsView view = {ToSpan(contexts), ToSpan(offsets), bos};
  const Normalization normalized = ParseNormalization(normalization);
  TreeBatch trees;
  {
    const py::gil_scoped_release release;
    trees = FindTreeBatch(batch, Get(lm), view, alpha, max_nodes, threads, normalized);
  }
  return ToArrays(std::move(trees), max_nodes, batch.num_slots());
}

ChainArrays FindChains(const Lattices& lattices, const LmOrNone& lm, const Array<TokenId>& contexts,
                       const Array<std::int64_t>& offsets, bool bos, double alpha, int threads,
                       bool is_walk, const std::string& normalization) {
  const LatticeBatch batch = ToBatch(lattices);
  const ContextsView view = {ToSpan(contexts), ToSpan(offsets), bos};
  const ChainOptions options = {
      alpha, is_walk ? ChainObjective::kGreedyWalk : ChainObjective::kAcceptLength,
      ParseNormalization(normalization)};
  ChainBatch chains;
  {
    const py::gil_scoped_release release;
    chains = FindChainBatch(batch, Get(lm), view, options, threads);
  }
  const auto rows = static_cast<py::ssize_t>(chains.counts.size());
  const auto slots = static_cast<py::ssize_t>(chains.num_slots);
  return ChainArrays(ToArray(std::move(chains.token_ids), {rows, 1, slots}),
                     ToArray(std::move(chains.accept_lengths), {rows, 1}),
                     ToArray(std::move(chains.counts)),
                     ToArray(std::move(chains.log_probs), {rows, 1, slots}));
}

SampleArrays SampleTrees(const Lattices& lattices, const LmOrNone& lm,
                         const Array<TokenId>& contexts, const Array<std::int64_t>& offsets,
                         bool bos, int max_nodes, double alpha, const Noise& noise, int threads,
                         const std::string& normalization) {
  const LatticeBatch batch = ToBatch(lattices);
  const ContextsView view = {ToSpan(contexts), ToSpan(offsets), bos};
  const auto& [keys, positions, shared, sharpness] = noise;
  SampleOptions options;
  options.alpha = alpha;
  options.normalization = ParseNormalization(normalization);
  options.max_nodes = max_nodes;
  options.use = shared ? NoiseUse::kShared : NoiseUse::kIndependent;
  options.sharpness = sharpness;
  SampledTreeBatch trees;
  {
    const Span<std::uint64_t> key_span = ToSpan(keys), position_span = ToSpan(positions);
    const py::gil_scoped_release release;
    trees = SampleTreeBatch(batch, Get(lm), view, options, key_span, position_span, threads);
  }
  const auto rows = static_cast<py::ssize_t>(trees.counts.size());
  const auto slots = static_cast<py::ssize_t>(batch.num_slots());
  const auto width = static_cast<py::ssize_t>(trees.width);
  return SampleArrays(ToArray(std::move(trees.token_ids), {rows, max_nodes}),
                      ToArray(std::move(trees.parents), {rows, max_nodes}),
                      ToArray(std::move(trees.depths), {rows, max_nodes}),
                      ToArray(std::move(trees.log_probs), {rows, max_nodes}),
                      ToArray(std::move(trees.counts)),
                      ToArray(std::move(trees.slot_token_ids), {rows, slots, width}),
                      ToArray(std::move(trees.child_probs), {rows, max_nodes + 1, width}));
}

DraftArrays RescoreFst(const py::bytes& acceptor, const LmOrNone& lm, const Array<TokenId>& context,
                       bool bos, int num_drafts, double alpha, const std::string& engine) {
  const DraftOptions options{num_drafts, alpha, ParseEngine(engine)};
  const std::string bytes = acceptor;
  DraftBatch batch;
  {
    const py::gil_scoped_release release;
    const LmState start = Get(lm) ? Get(lm)->StateOfContext(ToSpan(context), bos) : LmState{};
    batch = FindFstDrafts(bytes, Get(lm), start, options);
  }
  return ToArrays(std::move(batch), num_drafts);
}

}  // namespace

void BindDraft(py::module_& m) {
  m.def("rescore", &Rescore, py::arg("lattices").noconvert(), py::arg("lm"),
        py::arg("contexts").noconvert(), py::arg("offsets").noconvert(), py::arg("bos"),
        py::arg("num_drafts"), py::arg("alpha"), py::arg("engine"), py::arg("threads"),
        py::arg("normalization") = "global");
  m.def("find_trees", &FindTrees, py::arg("lattices").noconvert(), py::arg("lm"),
        py::arg("contexts").noconvert(), py::arg("offsets").noconvert(), py::arg("bos"),
        py::arg("max_nodes"), py::arg("alpha"), py::arg("threads"),
        py::arg("normalization") = "global");
  m.def("find_chains", &FindChains, py::arg("lattices").noconvert(), py::arg("lm"),
        py::arg("contexts").noconvert(), py::arg("offsets").noconvert(), py::arg("bos"),
        py::arg("alpha"), py::arg("threads"), py::arg("is_walk") = false,
        py::arg("normalization") = "global");
  m.def("sample_trees", &SampleTrees, py::arg("lattices").noconvert(), py::arg("lm"),
        py::arg("contexts").noconvert(), py::arg("offsets").noconvert(), py::arg("bos"),
        py::arg("max_nodes"), py::arg("alpha"), py::arg("noise"), py::arg("threads"),
        py::arg("normalization") = "global");
  m.def("rescore_fst", &RescoreFst, py::arg("acceptor"), py::arg("lm"),
        py::arg("context").noconvert(), py::arg("bos"), py::arg("num_drafts"), py::arg("alpha"),
        py::arg("engine"));
  m.def("fused_instruction_sets", &FusedInstructionSets);
  py::class_<PackedHeads>(m, "PackedHeads", "Draft heads of one text, with weights of 8 bits.")
      .def(py::init(&MakePackedHeads), py::arg("num_slots"), py::arg("hidden_size"),
           py::arg("inner_size"), py::arg("inner"), py::arg("inner_bias"), py::arg("outer"),
           py::arg("outer_bias"), py::arg("rows"), py::arg("rows_bias"), py::arg("token_ids"))
      .def("candidates", &CandidatesOf, py::arg("hidden"), py::arg("embedding"), py::arg("top_k"),
           py::arg("threads"));
  m.def("set_fused_instruction_set", &SetFusedInstructionSet, py::arg("name"));
}

}  // namespace lattice_bpd
