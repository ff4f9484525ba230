// The parts of the extension module, bind_*.cc named for the modules of cpp/lattice_bpd, and the
// array checks that they share. Bindings hold no logic: check arrays, release the GIL, call the
// core.
#ifndef LATTICE_BPD_SRC_BINDINGS_H_
#define LATTICE_BPD_SRC_BINDINGS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/label.h"
#include "lattice_bpd/lattice/lattice_batch.h"
#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

void BindBase(pybind11::module_& m);
void BindLm(pybind11::module_& m);
void BindTrain(pybind11::module_& m);
void BindTrainPartitions(pybind11::module_& m);
void BindLattice(pybind11::module_& m);
void BindDraft(pybind11::module_& m);
void BindVerify(pybind11::module_& m);
void BindMixture(pybind11::module_& m);
void BindWords(pybind11::module_& m);
void BindWordLattices(pybind11::module_& m);

// "float32", "float16" or "bfloat16", of elements of so many bytes.
FloatType ParseFloatType(const std::string& name, pybind11::ssize_t itemsize);

// A contiguous array that is taken as it is: the typed Python layer converts, the binding does not.
template <typename T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

// Around a call that may take long: releases the GIL, and lets Ctrl-C (and SIGTERM, where Python
// handles it) stop the call. Python raises in its main thread only; elsewhere nothing stops.
struct LongCall {
  pybind11::gil_scoped_release release;
  InterruptScope interrupts{RaiseSignals};

  static void RaiseSignals() {
    const pybind11::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
  }
};

using GuardLongCall = pybind11::call_guard<LongCall>;

template <typename T>
Span<T> ToSpan(const Array<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

// Hands a vector over to numpy without a copy.
template <typename T>
pybind11::array_t<T> ToArray(std::vector<T> values, std::vector<pybind11::ssize_t> shape) {
  auto owner = std::make_unique<std::vector<T>>(std::move(values));
  const T* data = owner->data();
  const pybind11::capsule free(owner.release(),
                               [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return pybind11::array_t<T>(std::move(shape), data, free);
}

template <typename T>
pybind11::array_t<T> ToArray(std::vector<T> values) {
  const auto size = static_cast<pybind11::ssize_t>(values.size());
  return ToArray(std::move(values), {size});
}

template <typename T>
pybind11::array_t<T> ToArray(Span<T> values) {
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

using OptionalId = std::optional<TokenId>;
using MinCounts = std::vector<std::uint64_t>;

using LmOrNone = std::optional<std::shared_ptr<BackoffLm>>;

inline const BackoffLm* Get(const LmOrNone& lm) { return lm ? lm->get() : nullptr; }

// Python has no const objects; BackoffLm has no method that changes it.
inline std::shared_ptr<BackoffLm> ToPython(std::shared_ptr<const BackoffLm> lm) {
  return std::const_pointer_cast<BackoffLm>(std::move(lm));
}

// Candidates (batch, slots, top_k) as SelectTopK or a GPU's top-k gives them.
CandidatesView ToCandidates(const Array<TokenId>& token_ids, const Array<float>& scores);

// The lattices of a batch: candidates as token ids and scores, or lattices that have been built.
using CandidateArrays = std::pair<Array<TokenId>, Array<float>>;
using Lattices = std::variant<CandidateArrays, std::vector<const Sausage*>>;

// Borrows the arrays or lattices.
inline LatticeBatch ToBatch(const Lattices& lattices) {
  if (const auto* arrays = std::get_if<CandidateArrays>(&lattices)) {
    return ToCandidates(arrays->first, arrays->second);
  }
  return std::get<std::vector<const Sausage*>>(lattices);
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_SRC_BINDINGS_H_
