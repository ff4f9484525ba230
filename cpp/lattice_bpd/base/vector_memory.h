// Frees the memory of large std::vectors early.
#ifndef LATTICE_BPD_BASE_VECTOR_MEMORY_H_
#define LATTICE_BPD_BASE_VECTOR_MEMORY_H_

#include <vector>

namespace lattice_bpd {

// Frees a vector's memory. `vector = {}` assigns an empty list, which keeps it.
template <typename T>
void FreeMemory(std::vector<T>* vector) {
  std::vector<T>().swap(*vector);
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_VECTOR_MEMORY_H_
