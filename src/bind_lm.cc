#include <memory>

#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/arpa.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/lm/lm_file.h"
#include "lattice_bpd/lm/lm_from_fst.h"
#include "lattice_bpd/lm/lm_fst.h"
#include "lattice_bpd/lm/quantize.h"
#include "lattice_bpd/lm/score_text.h"
#include "lattice_bpd/lm/trie_assembler.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

// None where the symbol is no token id.
std::optional<TokenId> TokenOrNone(const Vocabulary& vocabulary, Symbol symbol) {
  if (!vocabulary.is_token(symbol)) return std::nullopt;
  return static_cast<TokenId>(symbol);
}

py::array_t<double> Score(const BackoffLm& lm, const Array<TokenId>& token_ids, bool bos,
                          bool eos) {
  std::vector<double> log_probs;
  {
    const LongCall guard;
    log_probs = ScoreText(lm, ToSpan(token_ids), bos, eos);
  }
  return ToArray(std::move(log_probs));
}

// ln P of k candidates after each of B histories; history i is token_ids[offsets[i]] and on.
py::array_t<double> ScoreCandidates(const BackoffLm& lm, const Array<TokenId>& token_ids,
                                    const Array<std::int64_t>& offsets,
                                    const Array<TokenId>& candidates, bool bos) {
  if (candidates.ndim() != 2) throw ValueError("score: expected candidates of shape (B, k)");
  const auto shape = {candidates.shape(0), candidates.shape(1)};
  std::vector<double> log_probs;
  {
    const LongCall guard;
    log_probs = LogProbs(lm, ToSpan(token_ids), ToSpan(offsets), ToSpan(candidates), bos);
  }
  return ToArray(std::move(log_probs), shape);
}

py::bytes ToFstBytes(const BackoffLm& lm, const Array<TokenId>& context, bool bos,
                     bool expand_failures, bool end_of_sentence, bool const_fst) {
  std::string bytes;
  {
    const LongCall guard;
    const LmState start = lm.StateOfContext(ToSpan(context), bos);
    bytes = LmToFstBytes(lm, start, {expand_failures, end_of_sentence, const_fst});
  }
  return py::bytes(bytes);
}

// Words as a file has them: their encoding is the caller's business.
using WordBytes = std::vector<py::bytes>;

std::vector<std::string> ToStrings(const WordBytes& words) {
  std::vector<std::string> strings;
  for (const py::bytes& word : words) strings.push_back(word);
  return strings;
}

std::shared_ptr<BackoffLm> ReadArpaOf(const std::string& path,
                                      std::optional<std::uint64_t> vocab_size,
                                      const WordBytes& words, OptionalId bos_id, OptionalId eos_id,
                                      OptionalId unk_id) {
  const ArpaOptions options{vocab_size, ToStrings(words), {bos_id, eos_id, unk_id}};
  const LongCall guard;
  return ToPython(ReadArpa(path, options));
}

void WriteArpaOf(const BackoffLm& lm, const std::string& path, const WordBytes& words) {
  const std::vector<std::string> strings = ToStrings(words);
  const LongCall guard;
  WriteArpa(lm, path, strings);
}

WordBytes ArpaWords(const std::string& path) {
  std::vector<std::string> words;
  {
    const LongCall guard;
    words = ReadArpaWords(path);
  }
  return {words.begin(), words.end()};
}

std::vector<std::size_t> NumNgrams(const BackoffLm& lm) {
  std::vector<std::size_t> counts;
  for (const PackedLevel& level : lm.levels()) counts.push_back(level.size());
  return counts;
}

std::uint64_t BytesOf(const PackedLevel& level) {
  return level.keys.size() + level.payload.size() + level.samples.size() +
         4 * (level.log_prob_values.size() + level.backoff_values.size() +
              level.child_bases.size() + level.wide_children.size());
}

py::dict DescribeLevel(const PackedLevel& level) {
  const LevelForm& form = level.form;
  return py::dict(
      py::arg("ngrams") = form.size, py::arg("bytes") = BytesOf(level),
      py::arg("key_bytes") = form.key_bytes, py::arg("log_prob_bytes") = form.log_prob_bytes,
      py::arg("backoff_bytes") = form.backoff_bytes, py::arg("child_bytes") = form.child_bytes,
      py::arg("log_prob_values") = level.log_prob_values.size(),
      py::arg("backoff_values") = level.backoff_values.size(),
      py::arg("log_prob_error") = form.log_prob_error,
      py::arg("backoff_error") = form.backoff_error);
}

std::vector<py::dict> DescribeLevels(const BackoffLm& lm) {
  std::vector<py::dict> levels;
  for (const PackedLevel& level : lm.levels()) levels.push_back(DescribeLevel(level));
  return levels;
}

// (kind, order, offset, bytes, checksum) of each section.
std::vector<py::tuple> Sections(const std::string& path) {
  std::vector<py::tuple> sections;
  for (const SectionEntry& entry : ListSections(path)) {
    sections.push_back(py::make_tuple(static_cast<std::uint32_t>(entry.kind), entry.level + 1,
                                      entry.offset, entry.size, entry.checksum));
  }
  return sections;
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

void BindAssembler(py::module_& m) {
  py::class_<TrieAssembler>(m, "TrieAssembler", "An LM from n-grams that arrive in order.")
      .def(py::init([](const Vocabulary& vocabulary, const Array<float>& unigrams) {
             return std::make_unique<TrieAssembler>(vocabulary, ToSpan(unigrams));
           }),
           py::arg("vocabulary"), py::arg("unigrams").noconvert())
      .def(
          "add",
          [](TrieAssembler* assembler, int length, const Array<Symbol>& symbols,
             const Array<float>& log_probs, const Array<float>& backoffs) {
            assembler->Add(length, ToSpan(symbols), ToSpan(log_probs), ToSpan(backoffs));
          },
          py::arg("length"), py::arg("symbols").noconvert(), py::arg("log_probs").noconvert(),
          py::arg("backoffs").noconvert())
      .def(
          "finish",
          [](TrieAssembler* assembler) {
            return ToPython(BackoffLm::FromTrie(assembler->Finish()));
          },
          py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void BindLm(py::module_& m) {
  BindVocabulary(m);
  py::class_<BackoffLm, std::shared_ptr<BackoffLm>>(
      m, "BackoffLm", "A backoff n-gram LM over token ids; immutable, safe for threads.")
      .def_property_readonly("order", &BackoffLm::order)
      .def_property_readonly("vocab_size",
                             [](const BackoffLm& lm) { return lm.vocabulary().vocab_size; })
      .def_property_readonly("num_ngrams", &NumNgrams, "Number of n-grams of each order.")
      .def_property_readonly(
          "bos_id",
          [](const BackoffLm& lm) { return TokenOrNone(lm.vocabulary(), lm.vocabulary().bos); })
      .def_property_readonly(
          "eos_id",
          [](const BackoffLm& lm) { return TokenOrNone(lm.vocabulary(), lm.vocabulary().eos); })
      .def_property_readonly(
          "unk_id",
          [](const BackoffLm& lm) { return TokenOrNone(lm.vocabulary(), lm.vocabulary().unk); })
      .def_property_readonly(
          "words",
          [](const BackoffLm& lm) -> std::optional<py::bytes> {
            if (lm.vocabulary().words == nullptr) return std::nullopt;
            return py::bytes(lm.vocabulary().words->lines());
          },
          "The word of each token id, a line feed after each; None where it has none.")
      .def_property_readonly("failure_label", &FailureLabel)
      .def("score", &Score, py::arg("token_ids").noconvert(), py::arg("bos"), py::arg("eos"))
      .def(
          "log_prob",
          [](const BackoffLm& lm, TokenId token_id, const Array<TokenId>& context, bool bos) {
            return LogProb(lm, token_id, ToSpan(context), bos);
          },
          py::arg("token_id"), py::arg("context").noconvert(), py::arg("bos"))
      .def("score_candidates", &ScoreCandidates, py::arg("token_ids").noconvert(),
           py::arg("offsets").noconvert(), py::arg("candidates").noconvert(), py::arg("bos"))
      .def("save", &SaveLm, py::arg("path"), GuardLongCall())
      .def("to_arpa", &WriteArpaOf, py::arg("path"), py::arg("words"))
      .def("to_fst_bytes", &ToFstBytes, py::arg("context").noconvert(), py::arg("bos"),
           py::arg("expand_failures"), py::arg("end_of_sentence"), py::arg("const_fst") = false);

  m.def(
      "load_lm",
      [](const std::string& path, std::optional<bool> verify) {
        return ToPython(LoadLm(path, verify));
      },
      py::arg("path"), py::arg("verify"), GuardLongCall());
  m.def("read_arpa", &ReadArpaOf, py::arg("path"), py::arg("vocab_size"), py::arg("words"),
        py::arg("bos_id"), py::arg("eos_id"), py::arg("unk_id"));
  m.def("read_arpa_words", &ArpaWords, py::arg("path"));

  BindAssembler(m);
  m.def(
      "quantize", [](const BackoffLm& lm, int bits) { return ToPython(QuantizeLm(lm, bits)); },
      py::arg("lm"), py::arg("bits"), GuardLongCall());
  m.def("describe_levels", &DescribeLevels, py::arg("lm"));
  m.def("list_sections", &Sections, py::arg("path"));
  m.def(
      "read_lm_fst",
      [](const std::string& path, std::uint64_t vocab_size, OptionalId bos_id, OptionalId eos_id,
         OptionalId unk_id, std::optional<Label> failure_label) {
        const FstImportOptions options{vocab_size, {bos_id, eos_id, unk_id}, failure_label};
        return ToPython(ReadLmFst(path, options));
      },
      py::arg("path"), py::arg("vocab_size"), py::arg("bos_id"), py::arg("eos_id"),
      py::arg("unk_id"), py::arg("failure_label"), GuardLongCall());
}

}  // namespace lattice_bpd
