#include <exception>

#include "bindings.h"
#include "lattice_bpd/base/errors.h"

namespace py = pybind11;

namespace lattice_bpd {

void BindErrors(py::module_& m) {
  py::register_exception<FormatError>(m, "FormatError", PyExc_ValueError);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const IoError& error) {  // OSError picks FileNotFoundError and the like by errno
      const py::tuple arguments = py::make_tuple(error.error_number(), error.what(), error.path());
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });
}

}  // namespace lattice_bpd
