// Looking into LMs and their files, and at how they predict a text.
#include <memory>

#include "bindings.h"
#include "lattice_bpd/lm/lm_file.h"
#include "lattice_bpd/lm/lm_from_fst.h"
#include "lattice_bpd/train/evaluate_lm.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

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

}  // namespace

void BindInspect(py::module_& m) {
  m.def("evaluate_lm", &Evaluate, py::arg("lm"), py::arg("token_ids").noconvert(),
        py::arg("offsets").noconvert(), py::arg("bos"), py::arg("eos"), py::arg("threads"));
  m.def("describe_levels", &DescribeLevels, py::arg("lm"));
  m.def("list_sections", &Sections, py::arg("path"));
  m.def(
      "read_lm_fst",
      [](const std::string& path, std::uint64_t vocab_size, std::optional<TokenId> bos_id,
         std::optional<TokenId> eos_id, std::optional<TokenId> unk_id,
         std::optional<Label> failure_label) {
        const FstImportOptions options{vocab_size, {bos_id, eos_id, unk_id}, failure_label};
        return std::const_pointer_cast<BackoffLm>(ReadLmFst(path, options));
      },
      py::arg("path"), py::arg("vocab_size"), py::arg("bos_id"), py::arg("eos_id"),
      py::arg("unk_id"), py::arg("failure_label"), py::call_guard<LongCall>());
}

}  // namespace lattice_bpd
