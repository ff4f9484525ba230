// OpenFst's binary format as arrays.
#ifndef LATTICE_BPD_LATTICE_FST_ARRAYS_H_
#define LATTICE_BPD_LATTICE_FST_ARRAYS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lattice_bpd {

struct FstArrays {
  std::int32_t start = -1;  // -1: the FST has no states
  std::vector<std::int32_t> sources;
  std::vector<std::int32_t> targets;
  std::vector<std::int32_t> input_labels;
  std::vector<std::int32_t> output_labels;
  std::vector<double> weights;
  std::vector<double> final_weights;  // of each state

  // Labels with their names; empty where the FST has no symbol table.
  std::vector<std::pair<std::int64_t, std::string>> names;
};

// An FST of type vector or const over standard arcs. Throws FormatError; its message continues
// "the FST ".
FstArrays ReadFstArrays(const std::string& bytes);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LATTICE_FST_ARRAYS_H_
