// Training on a cluster: what one machine does with its part of the n-grams.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/train/count_runs.h"
#include "lattice_bpd/train/estimate.h"
#include "lattice_bpd/train/row_trie.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

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

py::tuple Summarize(const std::vector<py::bytes>& runs, const MinCounts& min_counts) {
  const CountFiles files = OpenBytes(runs);
  PartSummary summary;
  {
    const py::gil_scoped_release release;
    summary = SummarizePart(CountPart(files, min_counts));
  }
  summary.context_count.resize(summary.count.size());
  return py::make_tuple(summary.count_of_counts, ToArray(std::move(summary.count)),
                        ToArray(std::move(summary.context_count)),
                        ToArray(std::move(summary.num_after)));
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
                                 ToArray(std::move(tables[m].counts)),
                                 ToArray(std::move(context_counts[m]))));
  }
  return result;
}

using CountsOfCounts = std::vector<CountOfCounts>;

// The symbols (N, n) of the n-grams of order n = 2, 3, ..
using SymbolArrays = std::vector<Array<Symbol>>;
template <typename T>
using Columns = std::vector<Array<T>>;

RowsByOrder ToRows(const SymbolArrays& symbols) {
  RowsByOrder rows;
  for (const Array<Symbol>& array : symbols) {
    const int length = static_cast<int>(rows.size()) + 2;
    if (length > kMaxOrder || array.ndim() != 2 || array.shape(1) != length) {
      throw ValueError(StrCat("n-gram rows: the array of order ", length,
                              " has another shape; expected (N, ", length, "), orders up to ",
                              kMaxOrder));
    }
    rows.push_back({length, ToSpan(array)});
  }
  return rows;
}

template <typename T>
std::vector<Span<T>> ToColumns(const Columns<T>& columns, const RowsByOrder& rows) {
  std::vector<Span<T>> spans;
  for (const Array<T>& column : columns) spans.push_back(ToSpan(column));
  bool fit = spans.size() == rows.size();
  for (std::size_t m = 0; fit && m < rows.size(); ++m) fit = spans[m].size() == rows[m].size();
  if (!fit) throw ValueError("n-gram rows: a column has another length; expected one for each row");
  return spans;
}

void CheckSymbols(const Vocabulary& vocabulary, std::size_t size, const char* name) {
  if (size == vocabulary.num_symbols()) return;
  throw ValueError(StrCat("n-gram rows: ", name, " has ", size, " entries; expected ",
                          vocabulary.num_symbols(), ", one for each symbol"));
}

template <typename T>
py::list ToList(std::vector<std::vector<T>> columns) {
  py::list result;
  for (std::vector<T>& column : columns) result.append(ToArray(std::move(column)));
  return result;
}

EstimateOptions MakeOptions(int order, int katz_k, const std::string& smoothing,
                            const std::string& unseen) {
  EstimateOptions options;
  options.order = order;
  options.katz_k = katz_k;
  options.threads = 1;
  options.smoothing = ParseSmoothing(smoothing);
  options.unseen = ParseUnseen(unseen);
  return options;
}

CountLevel ToUnigrams(const Vocabulary& vocabulary, const Array<std::uint64_t>& count,
                      const Array<std::uint64_t>& context_count) {
  CheckSymbols(vocabulary, static_cast<std::size_t>(count.size()), "count");
  CheckSymbols(vocabulary, static_cast<std::size_t>(context_count.size()), "context_count");
  CountLevel level;
  level.count.assign(count.data(), count.data() + count.size());
  level.context_count.assign(context_count.data(), context_count.data() + context_count.size());
  return level;
}

py::array_t<float> EstimateSymbols(const Vocabulary& vocabulary, const Array<std::uint64_t>& count,
                                   const CountsOfCounts& count_of_counts, int katz_k,
                                   const std::string& smoothing, const std::string& unseen) {
  CountTrie trie{vocabulary, {ToUnigrams(vocabulary, count, count)}};
  trie.levels[0].context_count = {};
  const EstimateOptions options = MakeOptions(1, katz_k, smoothing, unseen);
  Trie lm = EstimateLm(std::move(trie), options, nullptr, &count_of_counts);
  return ToArray(std::move(lm.levels[0].log_prob));
}

py::list Estimate(const Vocabulary& vocabulary, const SymbolArrays& symbols,
                  const Columns<std::uint64_t>& counts,
                  const Columns<std::uint64_t>& context_counts,
                  const Array<std::uint64_t>& unigram_counts,
                  const Array<std::uint64_t>& unigram_context_counts,
                  const CountsOfCounts& count_of_counts, int katz_k, const std::string& smoothing,
                  const std::string& unseen) {
  const RowsByOrder rows = ToRows(symbols);
  const CountsByOrder count_spans = ToColumns(counts, rows);
  const CountsByOrder context_spans = ToColumns(context_counts, rows);
  const int order = static_cast<int>(rows.size()) + 1;
  const EstimateOptions options = MakeOptions(order, katz_k, smoothing, unseen);
  if (count_of_counts.size() < static_cast<std::size_t>(order)) {
    throw ValueError("n-gram rows: counts of counts are missing; expected those of each order");
  }
  CountLevel unigrams = ToUnigrams(vocabulary, unigram_counts, unigram_context_counts);
  std::vector<std::vector<float>> log_probs;
  {
    const py::gil_scoped_release release;
    log_probs = EstimateRows(vocabulary, rows, std::move(unigrams), count_spans, context_spans,
                             count_of_counts, options);
  }
  return ToList(std::move(log_probs));
}

// The trie of rows, and all that was needed to make it.
struct LinkedRows {
  RowsByOrder rows;
  RowTrie shape;
  Trie trie;
};

LinkedRows Link(const Vocabulary& vocabulary, const Array<float>& unigrams,
                const SymbolArrays& symbols, const Columns<float>& log_probs) {
  CheckSymbols(vocabulary, static_cast<std::size_t>(unigrams.size()), "unigrams");
  LinkedRows linked;
  linked.rows = ToRows(symbols);
  const LogProbsByOrder columns = ToColumns(log_probs, linked.rows);
  const Span<float> unigram_span = ToSpan(unigrams);
  const py::gil_scoped_release release;
  linked.shape = LinkRows(vocabulary, linked.rows);
  linked.trie = TrieOfRows(vocabulary, linked.shape, unigram_span, columns);
  return linked;
}

py::list ContextProbs(const Vocabulary& vocabulary, const Array<float>& unigrams,
                      const SymbolArrays& symbols, const Columns<float>& log_probs) {
  const LinkedRows linked = Link(vocabulary, unigrams, symbols, log_probs);
  std::vector<std::vector<double>> probs;
  {
    const py::gil_scoped_release release;
    probs = ContextProbsOfRows(linked.trie, linked.shape);
  }
  return ToList(std::move(probs));
}

py::list RemovalCosts(const Vocabulary& vocabulary, const Array<float>& unigrams,
                      const SymbolArrays& symbols, const Columns<float>& log_probs,
                      const Columns<double>& context_probs) {
  const LinkedRows linked = Link(vocabulary, unigrams, symbols, log_probs);
  const ProbsByOrder columns = ToColumns(context_probs, linked.rows);
  std::vector<std::vector<double>> costs;
  {
    const py::gil_scoped_release release;
    costs = RemovalCostsOfRows(linked.trie, linked.shape, columns);
  }
  return ToList(std::move(costs));
}

py::list Backoffs(const Vocabulary& vocabulary, const Array<float>& unigrams,
                  const SymbolArrays& symbols, const Columns<float>& log_probs) {
  LinkedRows linked = Link(vocabulary, unigrams, symbols, log_probs);
  std::vector<ContextBackoffs> backoffs;
  {
    const py::gil_scoped_release release;
    backoffs = BackoffsOfRows(std::move(linked.trie), linked.shape, linked.rows);
  }
  py::list result;
  for (ContextBackoffs& level : backoffs) {
    const auto rows = static_cast<py::ssize_t>(level.backoff.size());
    const auto length = static_cast<py::ssize_t>(result.size()) + 1;
    result.append(py::make_tuple(ToArray(std::move(level.symbols), {rows, length}),
                                 ToArray(std::move(level.backoff))));
  }
  return result;
}

}  // namespace

void BindTrainPartitions(py::module_& m) {
  m.def("count_into_runs", &Count, py::arg("vocabulary"), py::arg("token_ids").noconvert(),
        py::arg("offsets").noconvert(), py::arg("order"), py::arg("num_parts"), py::arg("threads"),
        "The records of sequences as a run for each part, b'' where it gets none.");
  m.def("merge_runs", &Merge, py::arg("runs"), "The sum of runs as a run.");
  m.def("summarize_runs", &Summarize, py::arg("runs"), py::arg("min_counts"),
        "Counts of counts by order; of each symbol: count, context count, n-grams stored after.");
  m.def("list_runs", &List, py::arg("runs"), py::arg("min_counts"),
        "For order 2, 3, ..: symbols (N, order), counts (N,), context counts (N,), sorted.");
  m.def("estimate_symbols", &EstimateSymbols, py::arg("vocabulary"), py::arg("count").noconvert(),
        py::arg("count_of_counts"), py::arg("katz_k"), py::arg("smoothing"), py::arg("unseen"),
        "ln P of each symbol, (S,) float32.");
  m.def("estimate_rows", &Estimate, py::arg("vocabulary"), py::arg("symbols"), py::arg("counts"),
        py::arg("context_counts"), py::arg("unigram_counts").noconvert(),
        py::arg("unigram_context_counts").noconvert(), py::arg("count_of_counts"),
        py::arg("katz_k"), py::arg("smoothing"), py::arg("unseen"), "ln P of each row.");
  m.def("context_probs_of_rows", &ContextProbs, py::arg("vocabulary"),
        py::arg("unigrams").noconvert(), py::arg("symbols"), py::arg("log_probs"),
        "p(h) of each row hw.");
  m.def("removal_costs_of_rows", &RemovalCosts, py::arg("vocabulary"),
        py::arg("unigrams").noconvert(), py::arg("symbols"), py::arg("log_probs"),
        py::arg("context_probs"), "What the removal of each row costs.");
  m.def("backoffs_of_rows", &Backoffs, py::arg("vocabulary"), py::arg("unigrams").noconvert(),
        py::arg("symbols"), py::arg("log_probs"),
        "For contexts of 1, 2, .. symbols: symbols (N, length) and ln backoff weights (N,).");
  m.def(
      "describe_katz_violations",
      [](int order, const CountOfCounts& count_of_counts, const CountOfCounts& used, int katz_k) {
        CheckKatzK(katz_k);
        return DescribeViolations(order, count_of_counts, used, katz_k);
      },
      py::arg("order"), py::arg("count_of_counts"), py::arg("used"), py::arg("katz_k"),
      "Warnings about the discounts of an order; empty if none.");
}

}  // namespace lattice_bpd
