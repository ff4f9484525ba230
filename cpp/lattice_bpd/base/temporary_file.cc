#include "lattice_bpd/base/temporary_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {

TemporaryFile::TemporaryFile(const std::string& folder) : folder_(folder) {
  std::string path = folder + "/lattice-bpd.XXXXXX";
  descriptor_ = ::mkostemp(path.data(), O_CLOEXEC);
  if (descriptor_ < 0) ThrowErrno(errno, "create");
  ::unlink(path.c_str());
}

TemporaryFile::~TemporaryFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void TemporaryFile::Write(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  while (size > 0) {
    const ssize_t count = ::write(descriptor_, bytes, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) ThrowErrno(count < 0 ? errno : ENOSPC, "write");
    bytes += count;
    size -= static_cast<std::size_t>(count);
    size_ += static_cast<std::uint64_t>(count);
  }
}

std::shared_ptr<const FileReader> TemporaryFile::Finish() {
  return std::make_shared<const FileReader>(std::exchange(descriptor_, -1),
                                            "a temporary file in " + folder_);
}

void TemporaryFile::ThrowErrno(int error_number, const char* action) const {
  throw IoError(error_number, folder_,
                StrCat("cannot ", action, " a temporary file in ", folder_, ": ",
                       std::strerror(error_number)));
}

std::string DefaultTemporaryFolder() {
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : P_tmpdir;
}

std::uint64_t FreeBytes(const std::string& folder) {
  struct statvfs status;
  if (::statvfs(folder.c_str(), &status) != 0) return 0;
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

}  // namespace lattice_bpd
