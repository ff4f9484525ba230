// Training: counting, estimation, pruning, interpolation, evaluation.
#include <pybind11/typing.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/lm/unpack.h"
#include "lattice_bpd/train/corpus_counter.h"
#include "lattice_bpd/train/count_pruning.h"
#include "lattice_bpd/train/count_targets.h"
#include "lattice_bpd/train/estimate.h"
#include "lattice_bpd/train/evaluate_lm.h"
#include "lattice_bpd/train/interpolate.h"
#include "lattice_bpd/train/ngram_counts.h"
#include "lattice_bpd/train/prune.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using OptionalTargets = std::optional<Array<TokenId>>;

// Counts of the sequences, or of the targets after their tokens.
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
                       std::uint64_t vocab_size, int order, MinCounts min_counts, int katz_k,
                       OptionalId bos_id, OptionalId eos_id, OptionalId unk_id,
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
                             SuffixClosure::kKnown,  // estimation has linked every suffix
                             ResolveThreads(threads));
  }
  return py::make_tuple(ToPython(lm), report.warnings);
}

// One (symbols, counts) pair of arrays for each order.
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

py::list CountTables(const Array<TokenId>& token_ids, const Array<std::int64_t>& offsets,
                     std::uint64_t vocab_size, int order, const MinCounts& min_counts,
                     OptionalId bos_id, OptionalId eos_id, OptionalId unk_id, int threads,
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

std::unique_ptr<CorpusCounter> MakeCounter(std::uint64_t vocab_size, int order,
                                           std::uint64_t memory, const std::string& folder,
                                           OptionalId bos_id, OptionalId eos_id, OptionalId unk_id,
                                           int threads) {
  const Vocabulary vocabulary = MakeVocabulary(vocab_size, {bos_id, eos_id, unk_id});
  return std::make_unique<CorpusCounter>(vocabulary,
                                         CountingOptions{order, memory, folder, threads});
}

void AddBatch(CorpusCounter* counter, const Array<TokenId>& token_ids,
              const Array<std::int64_t>& offsets, bool continues, bool goes_on) {
  const TokenSequences batch{ToSpan(token_ids), ToSpan(offsets), continues,
                             static_cast<std::size_t>(goes_on ? 1 : 0)};
  const LongCall guard;
  counter->Add(batch);
}

std::shared_ptr<const CountFile> OpenCounts(const std::string& path) {
  return std::make_shared<const CountFile>(FileReader::Open(path));
}

py::tuple TrainOnCounts(CorpusCounter* counter, MinCounts min_counts, int katz_k,
                        bool full_count_of_counts, int threads, const std::string& smoothing,
                        const std::string& unseen) {
  EstimateOptions options;
  options.order = counter->order();
  options.katz_k = katz_k;
  options.min_counts = std::move(min_counts);
  options.full_count_of_counts = full_count_of_counts;
  options.threads = threads;
  options.smoothing = ParseSmoothing(smoothing);
  options.unseen = ParseUnseen(unseen);
  TrainReport report;
  std::shared_ptr<const BackoffLm> lm;
  {
    const LongCall guard;
    lm = BackoffLm::FromTrie(TrainLm(counter, options, &report), Packing::kFast,
                             SuffixClosure::kKnown, ResolveThreads(threads));
  }
  return py::make_tuple(ToPython(lm), report.warnings);
}

py::list TablesOfCounts(CorpusCounter* counter, const MinCounts& min_counts) {
  std::vector<NgramTable> tables;
  {
    const LongCall guard;
    CountTrie trie = counter->Finish(min_counts).trie;
    PruneByCount(min_counts, /*num_threads=*/1, &trie);
    for (int level = 0; level < trie.order(); ++level) tables.push_back(ListNgrams(trie, level));
  }
  return ToTables(std::move(tables));
}

py::typing::Dict<py::str, py::object> DescribeCounts(const std::string& path) {
  const std::shared_ptr<const CountFile> file = OpenCounts(path);
  const Vocabulary& vocabulary = file->vocabulary();
  const auto id = [&](Symbol symbol) -> py::object {
    return vocabulary.is_token(symbol) ? py::object(py::int_(symbol)) : py::none();
  };
  py::typing::Dict<py::str, py::object> info;
  info["order"] = file->order();
  info["vocab_size"] = vocabulary.vocab_size;
  info["bos_id"] = id(vocabulary.bos);
  info["eos_id"] = id(vocabulary.eos);
  info["unk_id"] = id(vocabulary.unk);
  info["num_sequences"] = file->totals().num_sequences;
  info["num_tokens"] = file->totals().num_keys - file->totals().num_sequences;
  info["num_records"] = file->num_records();
  info["file_size"] = file->size();
  info["sources"] = file->sources();
  return info;
}

std::shared_ptr<BackoffLm> Pack(const Trie& trie) { return ToPython(BackoffLm::FromTrie(trie)); }

LmList ListOf(const std::vector<std::shared_ptr<BackoffLm>>& lms) {
  return {lms.begin(), lms.end()};
}

// (tokens, unknown tokens, sum of ln P, hits of each order)
py::tuple Evaluate(const BackoffLm& lm, const Array<TokenId>& token_ids,
                   const Array<std::int64_t>& offsets, bool bos, bool eos, int threads) {
  const TokenSequences sequences{ToSpan(token_ids), ToSpan(offsets)};
  TextScore score;
  {
    const LongCall guard;
    score = EvaluateLm(lm, sequences, bos, eos, threads);
  }
  return py::make_tuple(score.tokens, score.unknown, score.log_prob, score.hits);
}

}  // namespace

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
  py::class_<CorpusCounter>(m, "CorpusCounter", "Counts n-grams within a memory budget.")
      .def(py::init(&MakeCounter), py::arg("vocab_size"), py::arg("order"), py::arg("memory"),
           py::arg("folder"), py::arg("bos_id"), py::arg("eos_id"), py::arg("unk_id"),
           py::arg("threads"))
      .def("add", &AddBatch, py::arg("token_ids").noconvert(), py::arg("offsets").noconvert(),
           py::arg("continues"), py::arg("goes_on"))
      .def(
          "add_file",
          [](CorpusCounter* counter, const std::string& path) {
            counter->AddFile(OpenCounts(path));
          },
          GuardLongCall(), py::arg("path"))
      .def("save", &CorpusCounter::Save, GuardLongCall(), py::arg("path"), py::arg("sources"))
      .def("train", &TrainOnCounts, py::arg("min_counts"), py::arg("katz_k"),
           py::arg("full_count_of_counts"), py::arg("threads"), py::arg("smoothing"),
           py::arg("unseen"))
      .def("tables", &TablesOfCounts, py::arg("min_counts"))
      .def(
          "progress",
          [](const CorpusCounter& counter) {
            const CountingProgress progress = counter.progress();
            return py::make_tuple(progress.totals.num_sequences, progress.totals.num_keys,
                                  progress.num_runs, progress.spilled_bytes);
          },
          "Sequences, tokens with their <s>, runs on disk, and their bytes.");
  m.def("describe_counts", &DescribeCounts, py::arg("path"), "The metadata of a counts file.");
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
      [](const BackoffLm& lm, const MinCounts& min_counts, int threads) {
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
  m.def("evaluate_lm", &Evaluate, py::arg("lm"), py::arg("token_ids").noconvert(),
        py::arg("offsets").noconvert(), py::arg("bos"), py::arg("eos"), py::arg("threads"));
}

}  // namespace lattice_bpd
