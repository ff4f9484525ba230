// The memory of large std::vectors: freed early, allocated in huge pages.
#ifndef LATTICE_BPD_BASE_VECTOR_MEMORY_H_
#define LATTICE_BPD_BASE_VECTOR_MEMORY_H_

#include <cstddef>
#include <vector>

#include "lattice_bpd/base/huge_pages.h"

namespace lattice_bpd {

// Frees a vector's memory. `vector = {}` assigns an empty list, which keeps it.
template <typename T>
void FreeMemory(std::vector<T>* vector) {
  std::vector<T>().swap(*vector);
}

// resize(size) of an empty vector in huge pages, for what is read at random: fewer TLB misses. What
// is read in order gains little, and a virtual machine may lack huge pages that its host backs.
template <typename T>
void ResizeInHugePages(std::size_t size, std::vector<T>* vector) {
  vector->reserve(size);
  PreferHugePages(vector->data(), size * sizeof(T));
  vector->resize(size);
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_VECTOR_MEMORY_H_
