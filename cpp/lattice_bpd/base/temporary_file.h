// A file that has no name: the system frees it when its last descriptor closes, so that nothing
// is left behind by an exception, by Ctrl-C, or by a kill.
#ifndef LATTICE_BPD_BASE_TEMPORARY_FILE_H_
#define LATTICE_BPD_BASE_TEMPORARY_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lattice_bpd/base/file_reader.h"

namespace lattice_bpd {

class TemporaryFile {
 public:
  // Creates the file in `folder`. This and Write throw IoError.
  explicit TemporaryFile(const std::string& folder);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void Write(const void* data, std::size_t size);
  std::uint64_t size() const { return size_; }

  // Ends writing and hands the contents over for reading.
  std::shared_ptr<const FileReader> Finish();

 private:
  [[noreturn]] void ThrowErrno(int error_number, const char* action) const;

  std::string folder_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// The folder for temporary files: TMPDIR, or the system's.
std::string DefaultTemporaryFolder();

// Free bytes in the folder's file system for this user; 0 where the system does not say.
std::uint64_t FreeBytes(const std::string& folder);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_TEMPORARY_FILE_H_
