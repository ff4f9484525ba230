#include <memory>

#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/lm/word_scorer.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

constexpr double kLog10 = 0.43429448190325182765;  // of e

// A Python string in UTF-8 (without a copy), or bytes.
std::string_view TextOf(py::handle text) {
  Py_ssize_t size = 0;
  if (PyUnicode_Check(text.ptr())) {
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) throw py::error_already_set();
    return {data, static_cast<std::size_t>(size)};
  }
  char* data = nullptr;
  if (!PyBytes_Check(text.ptr())) {
    throw py::type_error(StrCat("a ", Py_TYPE(text.ptr())->tp_name, "; expected str or bytes"));
  }
  PyBytes_AsStringAndSize(text.ptr(), &data, &size);
  return {data, static_cast<std::size_t>(size)};
}

// (log10 probability, n-gram length, whether it is unknown).
py::tuple ToTuple(const WordScore& score) {
  return py::make_tuple(score.log_prob * kLog10, score.ngram_length, score.oov);
}

std::vector<py::tuple> FullScores(const WordScorer& scorer, py::handle text, bool bos, bool eos) {
  std::vector<py::tuple> scores;
  LmState state = scorer.Start(bos);
  SymbolTexts texts{false, eos};
  scorer.Add(TextOf(text), &texts);
  for (const Symbol symbol : texts.symbols) {
    scores.push_back(ToTuple(scorer.Score(state, symbol, &state)));
  }
  return scores;
}

// (ln P, number of words, number of unknown words) of each text, a string or token ids.
py::tuple ScoreTexts(const WordScorer& scorer,
                     const std::vector<std::variant<Array<TokenId>, py::object>>& texts, bool bos,
                     bool eos, int threads) {
  std::vector<std::variant<Span<TokenId>, std::string_view>> views;
  for (const auto& text : texts) {
    if (const auto* ids = std::get_if<Array<TokenId>>(&text)) {
      views.emplace_back(ToSpan(*ids));
    } else {
      views.emplace_back(TextOf(std::get<py::object>(text)));
    }
  }
  std::vector<double> log_probs(views.size());
  std::vector<std::int64_t> words(views.size()), oov(views.size());
  const auto score = [&](std::size_t begin, std::size_t end) {
    SymbolTexts symbols{bos, eos};
    for (std::size_t i = begin; i < end; ++i) {
      std::visit([&](const auto& view) { scorer.Add(view, &symbols); }, views[i]);
    }
    for (const TextTotal& total : scorer.Totals(symbols)) {
      log_probs[begin] = total.log_prob;
      words[begin] = total.num_words;
      oov[begin++] = total.num_oov;
    }
  };
  {
    const LongCall guard;
    constexpr std::size_t kAtOnce = 64;
    RunParallel((views.size() + kAtOnce - 1) / kAtOnce, ResolveThreads(threads),
                [&](std::size_t task) {
                  score(task * kAtOnce, std::min(views.size(), (task + 1) * kAtOnce));
                });
  }
  return py::make_tuple(ToArray(std::move(log_probs)), ToArray(std::move(words)),
                        ToArray(std::move(oov)));
}

// Nodes of another LM's state may not exist in this one.
const LmState& Checked(const WordScorer& scorer, const LmState& state) {
  const std::vector<PackedLevel>& levels = scorer.lm().levels();
  bool exists = state.length < levels.size();
  for (std::uint32_t l = 0; exists && l < state.length; ++l) {
    exists = state.nodes[l] < levels[l].size();
  }
  if (exists) return state;
  throw ValueError(
      "state: it is of another LM; expected one that this LM has set (BeginSentenceWrite, "
      "NullContextWrite, BaseScore)");
}

// Orders states, and is equal where they are.
std::uint64_t KeyOf(const LmState& state) {
  const std::uint32_t node = state.length == 0 ? 0 : state.nodes[state.length - 1];
  return std::uint64_t{state.length} << 32 | node;
}

double ScoreText(const WordScorer& scorer, py::handle text, bool bos, bool eos) {
  SymbolTexts texts{bos, eos};
  scorer.Add(TextOf(text), &texts);
  return scorer.Totals(texts)[0].log_prob * kLog10;
}

double BaseScore(const WordScorer& scorer, const LmState& state, py::handle word, LmState* next) {
  const Symbol symbol = scorer.SymbolOf(TextOf(word));
  return scorer.Score(Checked(scorer, state), symbol, next).log_prob * kLog10;
}

// Methods called by Python's own protocol, which takes half of pybind11's time. `fast` answers
// calls with so many positional arguments; others, and those that fail, go to the method `slow`.
using FastCall = double (*)(const WordScorer&, PyObject* const*);

template <FastCall fast, Py_ssize_t expected>
PyObject* CallFast(const char* slow, PyObject* self, PyObject* const* arguments, Py_ssize_t count,
                   PyObject* names) {
  try {
    if (count == expected && names == nullptr) {
      return PyFloat_FromDouble(fast(py::handle(self).cast<const WordScorer&>(), arguments));
    }
  } catch (...) {
    PyErr_Clear();
  }
  const py::object method = py::reinterpret_steal<py::object>(PyObject_GetAttrString(self, slow));
  if (!method) return nullptr;
  return PyObject_Vectorcall(method.ptr(), arguments, static_cast<std::size_t>(count), names);
}

double FastScore(const WordScorer& scorer, PyObject* const* arguments) {
  return ScoreText(scorer, arguments[0], true, true);
}

double FastBaseScore(const WordScorer& scorer, PyObject* const* arguments) {
  return BaseScore(scorer, py::handle(arguments[0]).cast<const LmState&>(), arguments[1],
                   &py::handle(arguments[2]).cast<LmState&>());
}

PyObject* CallScore(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  return CallFast<&FastScore, 1>("score_text", self, arguments, count, names);
}

PyObject* CallBaseScore(PyObject* self, PyObject* const* arguments, Py_ssize_t count,
                        PyObject* names) {
  return CallFast<&FastBaseScore, 3>("base_score", self, arguments, count, names);
}

void AddFast(py::class_<WordScorer>* scorer, PyMethodDef* method) {
  PyObject* const added = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(scorer->ptr()), method);
  if (added == nullptr) throw py::error_already_set();
  scorer->attr(method->ml_name) = py::reinterpret_steal<py::object>(added);
}

void BindStates(py::module_& m) {
  py::class_<LmState>(m, "WordState", "A state of an LM, a value; that of no history at first.")
      .def(py::init<>())
      .def("__eq__",
           [](const LmState& a, const py::object& b) {
             return py::isinstance<LmState>(b) && a == b.cast<const LmState&>();
           })
      .def(
          "__lt__", [](const LmState& a, const LmState& b) { return KeyOf(a) < KeyOf(b); },
          py::is_operator())
      .def(
          "__le__", [](const LmState& a, const LmState& b) { return KeyOf(a) <= KeyOf(b); },
          py::is_operator())
      .def(
          "__gt__", [](const LmState& a, const LmState& b) { return KeyOf(a) > KeyOf(b); },
          py::is_operator())
      .def(
          "__ge__", [](const LmState& a, const LmState& b) { return KeyOf(a) >= KeyOf(b); },
          py::is_operator())
      .def("__hash__", &KeyOf)
      .def("__copy__", [](const LmState& state) { return state; })
      .def(
          "__deepcopy__", [](const LmState& state, const py::dict&) { return state; },
          py::arg("memo"))
      .def_readonly("length", &LmState::length);
}

}  // namespace

void BindWords(py::module_& m) {
  BindStates(m);
  py::class_<WordScorer> scorer(m, "WordScorer",
                                "Scores of words and of text, as log10 like KenLM's.");
  constexpr int kProtocol = METH_FASTCALL | METH_KEYWORDS;
  const auto method = [](auto* call) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call));
  };
  static PyMethodDef fast_methods[] = {
      {"fast_score", method(&CallScore), kProtocol, "score_text, called faster."},
      {"fast_base_score", method(&CallBaseScore), kProtocol, "base_score, called faster."}};
  for (PyMethodDef& fast : fast_methods) AddFast(&scorer, &fast);
  scorer
      .def(py::init([](const std::shared_ptr<BackoffLm>& lm, double missing_unk) {
             return std::make_unique<WordScorer>(lm, missing_unk / kLog10);
           }),
           py::arg("lm"), py::arg("missing_unk"))
      .def(
          "contains",
          [](const WordScorer& scorer, py::handle word) { return scorer.Contains(TextOf(word)); },
          py::arg("word"))
      .def(
          "symbol",
          [](const WordScorer& scorer, py::handle word) { return scorer.SymbolOf(TextOf(word)); },
          py::arg("word"))
      .def("start", &WordScorer::Start, py::arg("bos"))
      .def(
          "set_start",
          [](const WordScorer& scorer, LmState* state, bool bos) { *state = scorer.Start(bos); },
          py::arg("state").none(false), py::arg("bos"))
      .def("base_score", &BaseScore, py::arg("in_state"), py::arg("word"),
           py::arg("out_state").none(false))
      .def(
          "base_full_score",
          [](const WordScorer& scorer, const LmState& state, py::handle word, LmState* next) {
            const Symbol symbol = scorer.SymbolOf(TextOf(word));
            return ToTuple(scorer.Score(Checked(scorer, state), symbol, next));
          },
          py::arg("in_state"), py::arg("word"), py::arg("out_state").none(false))
      .def("score_text", &ScoreText, py::arg("sentence"), py::arg("bos") = true,
           py::arg("eos") = true)
      .def("word_scores", &FullScores, py::arg("sentence"), py::arg("bos"), py::arg("eos"))
      .def("score_texts", &ScoreTexts, py::arg("texts").noconvert(), py::arg("bos"), py::arg("eos"),
           py::arg("threads"));
  m.def(
      "with_words",
      [](const std::shared_ptr<BackoffLm>& lm, const py::bytes& lines) {
        std::string copy = lines;
        const LongCall guard;
        auto words = std::make_shared<const WordList>(std::move(copy));
        return ToPython(BackoffLm::WithWords(lm, std::move(words)));
      },
      py::arg("lm"), py::arg("lines"));
}

}  // namespace lattice_bpd
