#include <pybind11/typing.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/train/corpus_counter.h"
#include "lattice_bpd/train/count_pruning.h"
#include "lattice_bpd/train/estimate.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using OptionalId = std::optional<TokenId>;
using MinCounts = std::vector<std::uint64_t>;
using GuardLongCall = py::call_guard<LongCall>;

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
                             SuffixClosure::kKnown);
  }
  return py::make_tuple(std::const_pointer_cast<BackoffLm>(lm), report.warnings);
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

}  // namespace

void BindCount(py::module_& m) {
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
  m.def("describe_counts", &DescribeCounts, py::arg("path"), "What a counts file says of itself.");
}

}  // namespace lattice_bpd
