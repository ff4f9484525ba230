#include "bindings.h"
#include "lattice_bpd/decode/calibration.h"
#include "lattice_bpd/decode/step_costs.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

py::array_t<double> ToRow(std::vector<double> values) {
  const auto size = static_cast<py::ssize_t>(values.size());
  return ToArray(std::move(values), {size});
}

}  // namespace

void BindDecode(py::module_& m) {
  py::class_<StepCosts>(m, "StepCosts", "Seconds of a step against its draft tokens.")
      .def(py::init<>())
      .def("add", &StepCosts::Add, py::arg("size"), py::arg("seconds"), py::arg("steps") = 1,
           py::arg("looked_at") = false)
      .def("count", &StepCosts::Count, py::arg("size"))
      .def("seconds", &StepCosts::Seconds, py::arg("sizes"), py::arg("drawn") = false);
  py::class_<Calibration>(m, "Calibration", "How often nodes of a tree are kept.")
      .def(py::init<>())
      .def(
          "probabilities",
          [](const Calibration& calibration, const Array<float>& log_probs) {
            return ToRow(calibration.Probabilities(ToSpan(log_probs)));
          },
          py::arg("log_probs").noconvert())
      .def(
          "expected",
          [](const Calibration& calibration, const Array<float>& log_probs) {
            return ToRow(calibration.Expected(ToSpan(log_probs)));
          },
          py::arg("log_probs").noconvert())
      .def(
          "add",
          [](Calibration& calibration, const Array<float>& log_probs, const Array<bool>& kept) {
            static_assert(sizeof(bool) == 1);
            const auto* marks = reinterpret_cast<const std::uint8_t*>(kept.data());
            calibration.Add(ToSpan(log_probs), {marks, static_cast<std::size_t>(kept.size())});
          },
          py::arg("log_probs").noconvert(), py::arg("kept").noconvert());
}

}  // namespace lattice_bpd
