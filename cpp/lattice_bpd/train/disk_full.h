// An error message with the space needed where writing counts fills the disk.
#ifndef LATTICE_BPD_TRAIN_DISK_FULL_H_
#define LATTICE_BPD_TRAIN_DISK_FULL_H_

#include <cstdint>
#include <functional>
#include <string>

#include "lattice_bpd/train/count_file.h"

namespace lattice_bpd {

// Runs write(). An IoError from it that means a full disk, quota or file size limit is thrown again
// with the bytes written, those that num_keys keys need, judging by the part that is written, and
// what to do. `path`: the folder or file.
void ExplainFullDisk(const std::string& path, const CountFileWriter& writer, std::uint64_t num_keys,
                     const std::function<void()>& write);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_DISK_FULL_H_
