// Sets OpenFst up for this process; includes none of OpenFst's headers.
#ifndef LATTICE_BPD_BASE_USE_OPENFST_H_
#define LATTICE_BPD_BASE_USE_OPENFST_H_

namespace lattice_bpd {

// Call once before any FST is created (module initialization does). Keeps OpenFst from ending the
// process on an error.
void UseOpenFst();

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_USE_OPENFST_H_
