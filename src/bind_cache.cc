// The cache LM. Every call takes its lock without the GIL: a search that holds it may be waiting
// for other threads.
#include "bindings.h"
#include "lattice_bpd/lm/context_ngram.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using Release = py::call_guard<py::gil_scoped_release>;

void Update(ContextNgram& cache, const Array<TokenId>& token_ids, const LmOrNone& lm, bool bos) {
  const Span<TokenId> tokens = ToSpan(token_ids);
  const py::gil_scoped_release release;
  cache.Update(tokens, Get(lm), bos);
}

double LogProbOf(const ContextNgram& cache, TokenId token_id, const Array<TokenId>& context,
                 const LmOrNone& lm, bool bos) {
  const Span<TokenId> tokens = ToSpan(context);
  const py::gil_scoped_release release;
  return cache.LogProb(token_id, tokens, Get(lm), bos);
}

Array<TokenId> TextOf(const ContextNgram& cache) {
  std::vector<TokenId> text;
  {
    const py::gil_scoped_release release;
    text = cache.text();
  }
  return Array<TokenId>(static_cast<py::ssize_t>(text.size()), text.data());
}

void Restore(ContextNgram& cache, const Array<TokenId>& token_ids,
             const std::vector<double>& weights) {
  const Span<TokenId> tokens = ToSpan(token_ids);
  const py::gil_scoped_release release;
  cache.Restore(tokens, weights);
}

}  // namespace

void BindCache(py::module_& m) {
  py::class_<ContextNgram>(m, "ContextNgram", "A cache LM of the text so far; safe for threads.")
      .def(py::init<std::int64_t, int, std::int64_t>(), py::arg("vocab_size"), py::arg("order"),
           py::arg("max_tokens"))
      .def_property_readonly("vocab_size", &ContextNgram::vocab_size)
      .def_property_readonly("order", &ContextNgram::order)
      .def_property_readonly("max_tokens", &ContextNgram::max_tokens)
      .def("num_tokens", &ContextNgram::num_tokens, Release())
      .def("weights", &ContextNgram::weights, Release())
      .def("update", &Update, py::arg("token_ids").noconvert(), py::arg("lm"), py::arg("bos"))
      .def("text", &TextOf)
      .def("restore", &Restore, py::arg("token_ids").noconvert(), py::arg("weights"))
      .def("clear", &ContextNgram::Clear, Release())
      .def("log_prob", &LogProbOf, py::arg("token_id"), py::arg("context").noconvert(),
           py::arg("lm"), py::arg("bos"));
}

}  // namespace lattice_bpd
