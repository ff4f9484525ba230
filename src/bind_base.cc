// Exceptions, and token ids at the speed of a memory read.
#include <pybind11/typing.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <tuple>

#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/thread_team.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

// A message may quote bytes of a file that are not text: those are escaped, in every version of
// Python (PyErr_SetString loses the message in 3.11.2, which Debian 12 has).
py::object ToText(const char* message) {
  const auto size = static_cast<Py_ssize_t>(std::strlen(message));
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(message, size, "backslashreplace"));
}

py::object ToPath(const std::string& path) {
  const auto size = static_cast<Py_ssize_t>(path.size());
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefaultAndSize(path.data(), size));
}

bool AppendList(PyObject* list, std::int64_t largest, std::vector<TokenId>* out) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* item = PyList_GET_ITEM(list, i);
    if (!PyLong_CheckExact(item)) return false;
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
    if (overflow != 0 || value < 0 || value > largest) return false;
    out->push_back(static_cast<TokenId>(value));
  }
  return true;
}

template <typename T>
bool AppendArray(py::handle object, std::int64_t largest, std::vector<TokenId>* out) {
  if (!py::isinstance<Array<T>>(object)) return false;
  const auto array = py::reinterpret_borrow<Array<T>>(object);
  if (array.ndim() != 1) return false;
  const Span<T> values = ToSpan(array);
  bool within = true;
  for (const T value : values) within = within && value >= 0 && value <= largest;
  if (within) out->insert(out->end(), values.begin(), values.end());
  return within;
}

// Not of a subclass: a masked array holds ids that do not count.
bool IsPlainArray(py::handle row) {
  return py::type::handle_of(row).ptr() ==
         reinterpret_cast<PyObject*>(py::detail::npy_api::get().PyArray_Type_);
}

bool Append(py::handle row, std::int64_t largest, std::vector<TokenId>* out) {
  if (PyList_CheckExact(row.ptr())) return AppendList(row.ptr(), largest, out);
  if (!IsPlainArray(row)) return false;
  return AppendArray<TokenId>(row, largest, out) || AppendArray<std::int64_t>(row, largest, out);
}

using PackedIds = std::tuple<py::array_t<TokenId>, py::array_t<std::int64_t>>;

// Whatever is unusual or invalid is left to lattice_bpd.token_ids, which also words the errors.
//
// Rows that are plain lists of ints or int32 or int64 arrays, ids 0..largest: token ids,
// concatenated, and offsets (rows + 1,). None for anything else.
std::optional<PackedIds> PackTokenIds(const py::typing::List<py::object>& rows,
                                      std::int64_t largest) {
  std::vector<TokenId> token_ids;
  std::vector<std::int64_t> offsets = {0};
  for (const py::handle row : rows) {
    if (!Append(row, largest, &token_ids)) return std::nullopt;
    offsets.push_back(static_cast<std::int64_t>(token_ids.size()));
  }
  return PackedIds(ToArray(std::move(token_ids)), ToArray(std::move(offsets)));
}

// Addresses of functions with the types in thread_team.h.
void UseThreadTeam(std::uintptr_t parallel_for, std::uintptr_t count_threads) {
  SetThreadTeam({reinterpret_cast<decltype(ThreadTeam::parallel_for)>(parallel_for),
                 reinterpret_cast<decltype(ThreadTeam::count_threads)>(count_threads)});
}

}  // namespace

void BindBase(py::module_& m) {
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
  m.def("use_thread_team", &UseThreadTeam, py::arg("parallel_for"), py::arg("count_threads"));
  m.def("pack_token_ids", &PackTokenIds, py::arg("rows"), py::arg("largest"));
}

}  // namespace lattice_bpd
