#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lattice/acceptor_arcs.h"
#include "lattice_bpd/lattice/rejection_sampling.h"
#include "lattice_bpd/lattice/sample_token.h"
#include "lattice_bpd/lattice/sausage.h"
#include "lattice_bpd/lattice/top_k.h"

namespace py = pybind11;

namespace lattice_bpd {

FloatType ParseFloatType(const std::string& name, py::ssize_t itemsize) {
  if (name == "float32" && itemsize == 4) return FloatType::kFloat32;
  if (name == "float16" && itemsize == 2) return FloatType::kFloat16;
  if (name == "bfloat16" && itemsize == 2) return FloatType::kBFloat16;
  throw ValueError(StrCat("elements of ", itemsize, " bytes as ", name,
                          "; expected float32, float16 or bfloat16"));
}

namespace {

// (slots, vocab) or (batch, slots, vocab) in any strides -> token ids and scores of shape
// (.., slots, top_k). Copies only where the strides of batch and slots don't join.
std::tuple<py::array_t<TokenId>, py::array_t<float>> TopKOf(py::array logits,
                                                            const std::string& float_type,
                                                            int top_k, bool log_softmax,
                                                            int threads, bool skip_bad_rows) {
  const py::ssize_t axes = logits.ndim();
  if (axes != 2 && axes != 3) {
    throw ValueError(StrCat("head_logits: ", axes, " dimensions; expected 2 or 3"));
  }
  const py::ssize_t batch = axes == 2 ? 1 : logits.shape(0);
  const py::ssize_t slots = logits.shape(axes - 2), vocab_size = logits.shape(axes - 1);
  if (batch > 1 && logits.strides(0) != slots * logits.strides(1)) {
    logits = logits.reshape({batch * slots, vocab_size});
  }
  const py::ssize_t last = logits.ndim() - 1;
  LogitsView view;
  view.data = logits.data();
  view.type = ParseFloatType(float_type, logits.itemsize());
  view.rows = static_cast<std::size_t>(batch * slots);
  view.columns = static_cast<std::size_t>(vocab_size);
  view.row_stride = logits.strides(last - 1);
  view.column_stride = logits.strides(last);
  TopK best;
  {
    const py::gil_scoped_release release;
    best = SelectTopK(view, {top_k, log_softmax, threads, skip_bad_rows});
  }
  const std::vector<py::ssize_t> shape = axes == 2 ? std::vector<py::ssize_t>{slots, top_k}
                                                   : std::vector<py::ssize_t>{batch, slots, top_k};
  return std::make_tuple(ToArray(std::move(best.token_ids), shape),
                         ToArray(std::move(best.scores), shape));
}

// (vocab,) float32 -> a sample of softmax(scale * logits) by the noise of (key, position).
TokenId SampleTokenOf(const Array<float>& logits, double scale, std::uint64_t key,
                      std::uint64_t position) {
  const Span<float> values = ToSpan(logits);
  const py::gil_scoped_release release;
  return SampleToken(values, scale, NoiseRow(key, position));
}

// Logits (vocab,), draft tokens (n,), their distribution (k,) and (k,) -> the token chosen.
TokenId RejectionSampleOf(const Array<float>& logits, const Array<TokenId>& draft_tokens,
                          const Array<TokenId>& token_ids, const Array<double>& probs,
                          std::uint64_t key, std::uint64_t position, double lenience) {
  if (token_ids.size() != probs.size()) {
    throw ValueError(StrCat("the draft distribution has ", token_ids.size(), " token ids and ",
                            probs.size(), " probabilities; expected as many of each"));
  }
  const Span<float> values = ToSpan(logits);
  const Span<TokenId> drafts = ToSpan(draft_tokens);
  const DraftDistribution q{ToSpan(token_ids), ToSpan(probs)};
  const py::gil_scoped_release release;
  return RejectionSample(values, drafts, q, NoiseRow(key, position), lenience);
}

// (rows, n) token ids -> the noise of row `first_row` + r and each token, float32.
py::array_t<float> GumbelNoise(std::uint64_t key, std::uint64_t first_row,
                               const Array<TokenId>& token_ids) {
  if (token_ids.ndim() != 2) {
    throw ValueError(StrCat("token_ids: ", token_ids.ndim(), " dimensions; expected 2"));
  }
  const py::ssize_t rows = token_ids.shape(0), columns = token_ids.shape(1);
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  const TokenId* token_id = token_ids.data();
  float* value = values.data();
  for (py::ssize_t row = 0; row < rows; ++row) {
    const NoiseRow noise(key, first_row + static_cast<std::uint64_t>(row));
    for (py::ssize_t i = 0; i < columns; ++i) {
      *value++ = static_cast<float>(noise.Gumbel(static_cast<std::uint64_t>(*token_id++)));
    }
  }
  return ToArray(std::move(values), {rows, columns});
}

// Candidates (batch, slots, k), transitions (batch, slots - 1, k, k) or none -> a lattice of each.
std::vector<Sausage> SausagesOf(const Array<TokenId>& token_ids, const Array<float>& scores,
                                const std::optional<Array<float>>& transitions) {
  const CandidatesView view = ToCandidates(token_ids, scores);
  const std::size_t k = view.top_k, pairs = k * k;
  if (transitions &&
      transitions->size() != static_cast<py::ssize_t>(view.batch * (view.num_slots - 1) * pairs)) {
    throw ValueError("transitions must be (batch, slots - 1, top_k, top_k)");
  }
  const float* scored_pairs = transitions ? transitions->data() : nullptr;
  const py::gil_scoped_release release;
  std::vector<Sausage> out(view.batch);
  for (std::size_t b = 0; b < view.batch; ++b) {
    for (std::size_t slot = 0; slot < view.num_slots; ++slot) {
      const std::size_t at = (b * view.num_slots + slot) * k;
      Span<float> of_slot;
      if (scored_pairs != nullptr && slot > 0) {
        of_slot = {scored_pairs + (b * (view.num_slots - 1) + slot - 1) * pairs, pairs};
      }
      out[b].AddSlot({view.token_ids + at, k}, {view.scores + at, k}, of_slot);
    }
  }
  return out;
}

// Start state, is_final (states,), offsets (states + 1,), labels (arcs,), next states (arcs,).
py::tuple ReadArcs(const py::bytes& acceptor) {
  AcceptorArcs arcs = ReadAcceptorArcs(acceptor);
  return py::make_tuple(arcs.start, ToArray(std::move(arcs.is_final)),
                        ToArray(std::move(arcs.offsets)), ToArray(std::move(arcs.labels)),
                        ToArray(std::move(arcs.next_states)));
}

}  // namespace

CandidatesView ToCandidates(const Array<TokenId>& token_ids, const Array<float>& scores) {
  const bool same_shape = token_ids.ndim() == 3 && scores.ndim() == 3 &&
                          std::equal(token_ids.shape(), token_ids.shape() + 3, scores.shape());
  if (!same_shape) {
    throw ValueError("candidates: token_ids and scores must both be (batch, slots, top_k)");
  }
  const auto size = [&](int axis) { return static_cast<std::size_t>(token_ids.shape(axis)); };
  return {token_ids.data(), scores.data(), size(0), size(1), size(2)};
}

void BindLattice(py::module_& m) {
  m.def("select_top_k", &TopKOf, py::arg("logits"), py::arg("float_type"), py::arg("top_k"),
        py::arg("log_softmax"), py::arg("threads") = 0, py::arg("skip_bad_rows") = false);
  m.def("sample_token", &SampleTokenOf, py::arg("logits").noconvert(), py::arg("scale"),
        py::arg("key"), py::arg("position"));
  m.def("gumbel_noise", &GumbelNoise, py::arg("key"), py::arg("first_row"),
        py::arg("token_ids").noconvert());
  m.def("rejection_sample", &RejectionSampleOf, py::arg("logits").noconvert(),
        py::arg("draft_tokens").noconvert(), py::arg("token_ids").noconvert(),
        py::arg("probs").noconvert(), py::arg("key"), py::arg("position"),
        py::arg("lenience") = 1.0);
  m.def("top_k_instruction_sets", &TopKInstructionSets);
  py::class_<Sausage>(m, "Sausage", "A sausage lattice: candidate tokens and scores by slot.")
      .def(py::init<>())
      .def(
          "add_slot",
          [](Sausage& sausage, const Array<TokenId>& token_ids, const Array<float>& scores) {
            sausage.AddSlot(ToSpan(token_ids), ToSpan(scores));
          },
          py::arg("token_ids").noconvert(), py::arg("scores").noconvert())
      .def_property_readonly("num_slots", &Sausage::num_slots)
      .def(
          "token_ids",
          [](const Sausage& sausage, std::size_t slot) { return ToArray(sausage.token_ids(slot)); },
          py::arg("slot"))
      .def(
          "scores",
          [](const Sausage& sausage, std::size_t slot) { return ToArray(sausage.scores(slot)); },
          py::arg("slot"))
      .def("at_temperature", &Sausage::AtTemperature, py::arg("temperature"))
      .def("to_fst_bytes",
           [](const Sausage& sausage) { return py::bytes(SausageToFstBytes(sausage)); });
  m.def("read_acceptor", &ReadArcs, py::arg("acceptor"));
  m.def("sausages_of", &SausagesOf, py::arg("token_ids").noconvert(), py::arg("scores").noconvert(),
        py::arg("transitions").noconvert());
}

}  // namespace lattice_bpd
