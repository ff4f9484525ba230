// The checksum shared by count_file_writer.cc and count_file.cc.
#ifndef LATTICE_BPD_TRAIN_COUNT_FILE_CHECKSUM_H_
#define LATTICE_BPD_TRAIN_COUNT_FILE_CHECKSUM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lattice_bpd/base/checksum.h"
#include "lattice_bpd/train/count_file.h"

namespace lattice_bpd {

constexpr std::uint32_t kCountByteOrder = 0x01020304u;

inline std::uint64_t CountFileChecksum(const CountFileHeader& header, const std::string& sources,
                                       const std::vector<BlockEntry>& index,
                                       CountFileFooter footer) {
  footer.checksum = 0;
  const std::uint64_t parts[4] = {
      Checksum(&header, sizeof header), Checksum(sources.data(), sources.size()),
      Checksum(index.data(), index.size() * sizeof(BlockEntry)), Checksum(&footer, sizeof footer)};
  return Checksum(parts, sizeof parts);
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_COUNT_FILE_CHECKSUM_H_
