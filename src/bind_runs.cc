// Counting a partition of a corpus on one machine of a cluster.
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/train/count_runs.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using OptionalId = std::optional<TokenId>;
using MinCounts = std::vector<std::uint64_t>;

CountFiles OpenBytes(const std::vector<py::bytes>& runs) {
  std::vector<std::string> copies(runs.begin(), runs.end());
  return OpenRuns(std::move(copies));
}

CountedNgrams CountPart(const CountFiles& runs, const MinCounts& min_counts) {
  if (runs.empty()) throw ValueError("n-gram counting: no runs; expected at least one");
  CountTrieOptions options;
  options.order = runs[0]->order();
  options.min_counts = min_counts;
  return BuildCountTrie(runs, options);
}

py::list Count(const Vocabulary& vocabulary, const Array<TokenId>& token_ids,
               const Array<std::int64_t>& offsets, int order, std::uint32_t num_parts,
               int threads) {
  std::vector<std::string> runs;
  {
    const TokenSequences sequences{ToSpan(token_ids), ToSpan(offsets)};
    const py::gil_scoped_release release;
    runs = CountIntoRuns(sequences, vocabulary, order, num_parts, threads);
  }
  py::list result;
  for (std::string& run : runs) {
    result.append(py::bytes(run));
    run = {};
  }
  return result;
}

py::bytes Merge(const std::vector<py::bytes>& runs) {
  const CountFiles files = OpenBytes(runs);
  std::string merged;
  {
    const py::gil_scoped_release release;
    merged = MergeRuns(files);
  }
  return {merged};
}

py::tuple Summarise(const std::vector<py::bytes>& runs, const MinCounts& min_counts) {
  const CountFiles files = OpenBytes(runs);
  PartSummary summary;
  {
    const py::gil_scoped_release release;
    summary = SummarisePart(CountPart(files, min_counts));
  }
  const auto size = static_cast<py::ssize_t>(summary.count.size());
  summary.context_count.resize(summary.count.size());
  return py::make_tuple(summary.count_of_counts, ToArray(std::move(summary.count), {size}),
                        ToArray(std::move(summary.context_count), {size}),
                        ToArray(std::move(summary.num_after), {size}));
}

py::list List(const std::vector<py::bytes>& runs, const MinCounts& min_counts) {
  const CountFiles files = OpenBytes(runs);
  std::vector<NgramTable> tables;
  std::vector<std::vector<std::uint64_t>> context_counts;
  {
    const py::gil_scoped_release release;
    const CountTrie trie = CountPart(files, min_counts).trie;
    for (int m = 1; m < trie.order(); ++m) {
      tables.push_back(ListNgrams(trie, m));
      context_counts.push_back(ContextCountsOf(trie, m));
    }
  }
  py::list result;
  for (std::size_t m = 0; m < tables.size(); ++m) {
    const auto rows = static_cast<py::ssize_t>(tables[m].counts.size());
    const auto length = static_cast<py::ssize_t>(m) + 2;
    result.append(py::make_tuple(ToArray(std::move(tables[m].symbols), {rows, length}),
                                 ToArray(std::move(tables[m].counts), {rows}),
                                 ToArray(std::move(context_counts[m]), {rows})));
  }
  return result;
}

void BindVocabulary(py::module_& m) {
  py::class_<Vocabulary>(m, "Vocabulary", "Token ids and the three special symbols.")
      .def(py::init([](std::uint64_t vocab_size, OptionalId bos_id, OptionalId eos_id,
                       OptionalId unk_id) {
             return MakeVocabulary(vocab_size, {bos_id, eos_id, unk_id});
           }),
           py::arg("vocab_size"), py::arg("bos_id"), py::arg("eos_id"), py::arg("unk_id"))
      .def_property_readonly("num_symbols", &Vocabulary::num_symbols)
      .def_readonly("bos", &Vocabulary::bos)
      .def_readonly("eos", &Vocabulary::eos)
      .def_readonly("unk", &Vocabulary::unk);
}

}  // namespace

void BindRuns(py::module_& m) {
  BindVocabulary(m);
  m.def("count_into_runs", &Count, py::arg("vocabulary"), py::arg("token_ids").noconvert(),
        py::arg("offsets").noconvert(), py::arg("order"), py::arg("num_parts"), py::arg("threads"),
        "The records of sequences as a run for each part, b'' where it gets none.");
  m.def("merge_runs", &Merge, py::arg("runs"), "The sum of runs as a run.");
  m.def("summarise_runs", &Summarise, py::arg("runs"), py::arg("min_counts"),
        "Counts of counts by order; of each symbol: count, context count, n-grams stored after.");
  m.def("list_runs", &List, py::arg("runs"), py::arg("min_counts"),
        "For order 2, 3, ..: symbols (N, order), counts (N,), context counts (N,), sorted.");
}

}  // namespace lattice_bpd
