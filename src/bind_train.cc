#include <memory>
#include <optional>
#include <string>

#include "bindings.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/train/count_pruning.h"
#include "lattice_bpd/train/count_targets.h"
#include "lattice_bpd/train/estimate.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using OptionalId = std::optional<TokenId>;
using OptionalTargets = std::optional<Array<TokenId>>;

// Counts of the sequences, or of the targets behind their tokens.
CountTrie CountAll(const TokenSequences& sequences, const std::optional<Span<TokenId>>& targets,
                   const Vocabulary& vocabulary, int order, int threads) {
  return targets ? CountTargets(sequences, *targets, vocabulary, order, threads)
                 : CountNgrams(sequences, vocabulary, order, threads);
}

std::optional<Span<TokenId>> ToOptionalSpan(const OptionalTargets& targets) {
  if (!targets) return std::nullopt;
  return ToSpan(*targets);
}

py::tuple TrainNgramLm(const Array<TokenId>& token_ids, const Array<std::int64_t>& offsets,
                       std::uint64_t vocab_size, int order, std::vector<std::uint64_t> min_counts,
                       int katz_k, OptionalId bos_id, OptionalId eos_id, OptionalId unk_id,
                       bool full_count_of_counts, int threads, const std::string& smoothing,
                       const std::string& unseen, const OptionalTargets& targets) {
  const std::optional<Span<TokenId>> target_span = ToOptionalSpan(targets);
  const TokenSequences sequences{ToSpan(token_ids), ToSpan(offsets)};
  const EstimateOptions options{order,
                                katz_k,
                                std::move(min_counts),
                                full_count_of_counts,
                                threads,
                                ParseSmoothing(smoothing),
                                ParseUnseen(unseen)};
  TrainReport report;
  std::shared_ptr<const BackoffLm> lm;
  {
    const LongCall guard;
    const Vocabulary vocabulary = MakeVocabulary(vocab_size, {bos_id, eos_id, unk_id});
    CountTrie counts = CountAll(sequences, target_span, vocabulary, order, threads);
    lm = BackoffLm::FromTrie(EstimateLm(std::move(counts), options, &report), Packing::kFast,
                             SuffixClosure::kKnown);  // estimation has linked every suffix
  }
  return py::make_tuple(std::const_pointer_cast<BackoffLm>(lm), report.warnings);
}

py::list CountTables(const Array<TokenId>& token_ids, const Array<std::int64_t>& offsets,
                     std::uint64_t vocab_size, int order,
                     const std::vector<std::uint64_t>& min_counts, OptionalId bos_id,
                     OptionalId eos_id, OptionalId unk_id, int threads,
                     const OptionalTargets& targets) {
  const std::optional<Span<TokenId>> target_span = ToOptionalSpan(targets);
  const TokenSequences sequences{ToSpan(token_ids), ToSpan(offsets)};
  std::vector<NgramTable> tables;
  {
    const LongCall guard;
    const Vocabulary vocabulary = MakeVocabulary(vocab_size, {bos_id, eos_id, unk_id});
    CountTrie trie = CountAll(sequences, target_span, vocabulary, order, threads);
    PruneByCount(min_counts, threads, &trie);
    for (int level = 0; level < trie.order(); ++level) tables.push_back(ListNgrams(trie, level));
  }
  return ToTables(std::move(tables));
}

}  // namespace

py::list ToTables(std::vector<NgramTable> tables) {
  py::list result;
  for (NgramTable& table : tables) {
    const auto rows = static_cast<py::ssize_t>(table.counts.size());
    const auto columns = static_cast<py::ssize_t>(result.size()) + 1;
    result.append(py::make_tuple(ToArray(std::move(table.symbols), {rows, columns}),
                                 ToArray(std::move(table.counts), {rows})));
  }
  return result;
}

void BindTrain(py::module_& m) {
  m.def("train_ngram", &TrainNgramLm, py::arg("token_ids").noconvert(),
        py::arg("offsets").noconvert(), py::arg("vocab_size"), py::arg("order"),
        py::arg("min_counts"), py::arg("katz_k"), py::arg("bos_id"), py::arg("eos_id"),
        py::arg("unk_id"), py::arg("full_count_of_counts"), py::arg("threads"),
        py::arg("smoothing"), py::arg("unseen"), py::arg("targets").noconvert() = py::none(),
        "Count and estimate an LM; returns the LM and the warnings about it.");
  m.def("count_ngrams", &CountTables, py::arg("token_ids").noconvert(),
        py::arg("offsets").noconvert(), py::arg("vocab_size"), py::arg("order"),
        py::arg("min_counts"), py::arg("bos_id"), py::arg("eos_id"), py::arg("unk_id"),
        py::arg("threads"), py::arg("targets").noconvert() = py::none(),
        "N-grams of each order as (symbols (N, order) int32, counts (N,) uint64), sorted.");
}

}  // namespace lattice_bpd
