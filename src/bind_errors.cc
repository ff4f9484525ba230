#include <cstring>
#include <exception>

#include "bindings.h"
#include "lattice_bpd/base/errors.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

// A message may quote bytes of a file that are no text: those stand escaped, in every version of
// Python (PyErr_SetString loses the message in 3.11.2, which Debian 12 has).
py::object ToText(const char* message) {
  const auto size = static_cast<Py_ssize_t>(std::strlen(message));
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(message, size, "backslashreplace"));
}

py::object ToPath(const std::string& path) {
  const auto size = static_cast<Py_ssize_t>(path.size());
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefaultAndSize(path.data(), size));
}

}  // namespace

void BindErrors(py::module_& m) {
  static PyObject* format_error =  // for as long as the process lives
      py::exception<FormatError>(m, "FormatError", PyExc_ValueError).release().ptr();
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const FormatError& error) {
      PyErr_SetObject(format_error, ToText(error.what()).ptr());
    } catch (const ValueError& error) {
      PyErr_SetObject(PyExc_ValueError, ToText(error.what()).ptr());
    } catch (const IoError& error) {  // OSError picks FileNotFoundError and the like by errno
      const py::tuple arguments =
          py::make_tuple(error.error_number(), ToText(error.what()), ToPath(error.path()));
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });
}

}  // namespace lattice_bpd
