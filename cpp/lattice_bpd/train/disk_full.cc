#include "lattice_bpd/train/disk_full.h"

#include <algorithm>
#include <cerrno>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/temporary_file.h"

namespace lattice_bpd {
namespace {

// A record takes about as many bytes on real text, where nothing was written yet.
constexpr double kTypicalRecordBytes = 8.0;

double NeededBytes(const CountFileWriter& writer, std::uint64_t num_keys) {
  const double keys = static_cast<double>(num_keys);
  if (writer.num_keys() == 0) return kTypicalRecordBytes * keys;
  const double written = static_cast<double>(writer.bytes_written() + writer.bytes_pending());
  return std::max(written, written / static_cast<double>(writer.num_keys()) * keys);
}

std::string Folder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

void ExplainFullDisk(const std::string& path, const CountFileWriter& writer, std::uint64_t num_keys,
                     const std::function<void()>& write) {
  try {
    write();
  } catch (const IoError& error) {
    const int number = error.error_number();
    if (number != ENOSPC && number != EDQUOT && number != EFBIG) throw;
    const std::uint64_t free = std::max(FreeBytes(path), FreeBytes(Folder(path)));
    throw IoError(
        number, error.path(),
        StrCat("n-gram counting: ", error.what(), "; ", writer.bytes_written(),
               " bytes of this file were written, about ",
               static_cast<std::uint64_t>(NeededBytes(writer, num_keys)), " are needed and ", free,
               " are free. What was written is removed: free space, or name another folder for "
               "temporary files in TMPDIR"));
  }
}

}  // namespace lattice_bpd
