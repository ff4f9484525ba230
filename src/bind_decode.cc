#include <optional>

#include "bindings.h"
#include "lattice_bpd/decode/repeats.h"
#include "lattice_bpd/decode/suffix_index.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using Tokens = std::vector<std::int64_t>;

std::pair<std::size_t, std::size_t> ToPair(const Match& match) {
  return {match.position, match.size};
}

}  // namespace

void BindDecode(py::module_& m) {
  py::class_<SuffixIndex>(m, "SuffixIndex", "Earlier occurrences of the last tokens of a text.")
      .def(py::init<std::size_t>(), py::arg("longest"))
      .def(
          "append",
          [](SuffixIndex& index, std::int64_t token) { return ToPair(index.Append(token)); },
          py::arg("token"))
      .def(
          "extend",
          [](SuffixIndex& index, const Tokens& tokens) {
            for (const std::int64_t token : tokens) index.Append(token);
          },
          py::arg("tokens"))
      .def(
          "find",
          [](const SuffixIndex& index, const Tokens& path) { return ToPair(index.Find(path)); },
          py::arg("path") = Tokens())
      .def(
          "follow",
          [](const SuffixIndex& index, std::size_t position, std::size_t count,
             const Tokens& path) { return index.Follow(position, count, path); },
          py::arg("position"), py::arg("count"), py::arg("path") = Tokens())
      .def("__len__", [](const SuffixIndex& index) { return index.tokens().size(); })
      .def_property_readonly("tokens", &SuffixIndex::tokens)
      .def_property_readonly("longest", &SuffixIndex::longest);
  py::class_<RepeatingText>(m, "RepeatingText", "A text whose repetitions extend draft trees.")
      .def(py::init<>())
      .def(
          "append", [](RepeatingText& text, const Tokens& tokens) { text.Append(tokens); },
          py::arg("tokens"))
      .def("extend_tree", &RepeatingText::Extend, py::arg("tree"), py::arg("num_slots"),
           py::arg("max_depth"), py::arg("max_nodes"))
      .def("__len__", [](const RepeatingText& text) { return text.index().tokens().size(); })
      .def_property_readonly("rates", [](const RepeatingText& text) {
        std::vector<std::pair<double, double>> rates;
        for (const RepeatRate& rate : text.rates()) rates.emplace_back(rate.correct, rate.total);
        return rates;
      });
}

}  // namespace lattice_bpd
