// lattice_bpd._core: the list of contents.
#include "bindings.h"
#include "lattice_bpd/base/use_openfst.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "C++ core of lattice-bpd; use the typed Python layer in lattice_bpd instead.";
  lattice_bpd::UseOpenFst();
  lattice_bpd::BindBase(m);
  lattice_bpd::BindLm(m);
  lattice_bpd::BindTrain(m);
  lattice_bpd::BindTrainPartitions(m);
  lattice_bpd::BindLattice(m);
  lattice_bpd::BindDraft(m);
  lattice_bpd::BindVerify(m);
  lattice_bpd::BindMixture(m);
  lattice_bpd::BindWords(m);
  lattice_bpd::BindWordLattices(m);
}
