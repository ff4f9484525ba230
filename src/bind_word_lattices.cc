#include "bindings.h"
#include "lattice_bpd/draft/search_word_lattice.h"
#include "lattice_bpd/lattice/fst_arrays.h"
#include "lattice_bpd/lattice/word_lattice.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

// Arrays are borrowed.
struct LatticeArguments {
  WordLatticeArrays arrays;
  LatticeArguments(std::uint32_t start, const Array<std::int32_t>& sources,
                   const Array<std::int32_t>& targets, const Array<std::int32_t>& words,
                   const Array<std::int32_t>& symbols, const Array<double>& costs,
                   const Array<double>& final_costs) {
    arrays = {static_cast<std::uint32_t>(final_costs.size()),
              start,
              ToSpan(sources),
              ToSpan(targets),
              ToSpan(words),
              ToSpan(symbols),
              ToSpan(costs),
              ToSpan(final_costs)};
  }
};

py::dict ToDict(WordSearchResult result) {
  WordPaths& paths = result.paths;
  RescoredArrays& rescored = result.rescored;
  return py::dict(py::arg("begins") = ToArray(std::move(paths.begins)),
                  py::arg("arcs") = ToArray(std::move(paths.arcs)),
                  py::arg("end_states") = ToArray(std::move(paths.end_states)),
                  py::arg("costs") = ToArray(std::move(paths.costs)),
                  py::arg("log_probs") = ToArray(std::move(paths.log_probs)),
                  py::arg("pair_states") = ToArray(std::move(rescored.states)),
                  py::arg("pair_end_log_probs") = ToArray(std::move(rescored.end_log_probs)),
                  py::arg("pair_sources") = ToArray(std::move(rescored.sources)),
                  py::arg("pair_targets") = ToArray(std::move(rescored.targets)),
                  py::arg("pair_arcs") = ToArray(std::move(rescored.arcs)),
                  py::arg("pair_log_probs") = ToArray(std::move(rescored.log_probs)));
}

py::tuple FstArraysOf(const py::bytes& data) {
  const std::string bytes = data;
  FstArrays fst;
  {
    const LongCall guard;
    fst = ReadFstArrays(bytes);
  }
  py::list names;
  for (const auto& [label, name] : fst.names) names.append(py::make_tuple(label, py::bytes(name)));
  return py::make_tuple(fst.start, names, ToArray(std::move(fst.sources)),
                        ToArray(std::move(fst.targets)), ToArray(std::move(fst.input_labels)),
                        ToArray(std::move(fst.output_labels)), ToArray(std::move(fst.weights)),
                        ToArray(std::move(fst.final_weights)));
}

}  // namespace

void BindWordLattices(py::module_& m) {
  m.def("fst_arrays", &FstArraysOf, py::arg("bytes"));
  m.def(
      "check_word_lattice",
      [](std::uint32_t start, const Array<std::int32_t>& sources,
         const Array<std::int32_t>& targets, const Array<std::int32_t>& words,
         const Array<double>& costs, const Array<double>& final_costs) {
        const LatticeArguments lattice(start, sources, targets, words, words, costs, final_costs);
        const LatticeCheck check = CheckWordLattice(lattice.arrays);
        return std::make_pair(static_cast<int>(check.fault), check.index);
      },
      py::arg("start"), py::arg("sources").noconvert(), py::arg("targets").noconvert(),
      py::arg("words").noconvert(), py::arg("costs").noconvert(),
      py::arg("final_costs").noconvert());
  m.def(
      "search_word_lattice",
      [](const WordScorer& scorer, std::uint32_t start, const Array<std::int32_t>& sources,
         const Array<std::int32_t>& targets, const Array<std::int32_t>& words,
         const Array<std::int32_t>& symbols, const Array<double>& costs,
         const Array<double>& final_costs, double alpha, bool bos, bool eos, int num_paths,
         bool rescored_lattice) {
        const LatticeArguments lattice(start, sources, targets, words, symbols, costs, final_costs);
        WordSearchResult result;
        {
          const LongCall guard;
          result = SearchWordLattice(BuildWordLattice(lattice.arrays), scorer,
                                     {alpha, bos, eos, num_paths, rescored_lattice});
        }
        return ToDict(std::move(result));
      },
      py::arg("scorer"), py::arg("start"), py::arg("sources").noconvert(),
      py::arg("targets").noconvert(), py::arg("words").noconvert(), py::arg("symbols").noconvert(),
      py::arg("costs").noconvert(), py::arg("final_costs").noconvert(), py::arg("alpha"),
      py::arg("bos"), py::arg("eos"), py::arg("num_paths"), py::arg("rescored_lattice"));
}

}  // namespace lattice_bpd
