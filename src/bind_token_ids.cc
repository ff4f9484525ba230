// Token ids from Python at the speed of a memory read; whatever is unusual or wrong is left to
// lattice_bpd.token_ids, which also words the errors.
#include <pybind11/typing.h>

#include <optional>
#include <tuple>

#include "bindings.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

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

// Rows that are plain lists of ints or int32 or int64 arrays, ids 0..largest: token ids one behind
// the other and offsets (rows + 1,). None for anything else.
std::optional<PackedIds> PackTokenIds(const py::typing::List<py::object>& rows,
                                      std::int64_t largest) {
  std::vector<TokenId> token_ids;
  std::vector<std::int64_t> offsets = {0};
  for (const py::handle row : rows) {
    if (!Append(row, largest, &token_ids)) return std::nullopt;
    offsets.push_back(static_cast<std::int64_t>(token_ids.size()));
  }
  return PackedIds(ToArray(Span<TokenId>(token_ids)), ToArray(Span<std::int64_t>(offsets)));
}

}  // namespace

void BindTokenIds(py::module_& m) {
  m.def("pack_token_ids", &PackTokenIds, py::arg("rows"), py::arg("largest"));
}

}  // namespace lattice_bpd
