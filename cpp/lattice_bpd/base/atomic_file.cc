#include "lattice_bpd/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/huge_pages.h"

namespace lattice_bpd {
namespace {

// mkstemp makes the file private; give it the permissions an ordinary new file would have.
mode_t DefaultMode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path)
    : path_(path), temporary_path_(path + ".tmp.XXXXXX") {
  struct stat status;
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;  // renaming would replace a device or pipe
    ThrowErrno(S_ISDIR(status.st_mode) ? "write" : "replace (it is not a regular file)");
  }
  const int fd = ::mkstemp(temporary_path_.data());
  if (fd < 0) ThrowErrno("create a temporary file beside");
  ::fchmod(fd, DefaultMode());
  file_ = ::fdopen(fd, "wb");
  if (file_ == nullptr) ThrowErrno("open a temporary file beside");
  // Written in such pieces, the file's pages can be huge ones for whoever maps it next.
  buffer_.reset(new char[kHugePage]);
  std::setvbuf(file_, buffer_.get(), _IOFBF, kHugePage);
}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  ::unlink(temporary_path_.c_str());
}

void AtomicFile::Write(const void* data, std::size_t size) {
  if (size != 0 && std::fwrite(data, 1, size, file_) != size) ThrowErrno("write");
}

void AtomicFile::Commit() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) ThrowErrno("write");
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) ThrowErrno("replace");
  std::fclose(file_);
  file_ = nullptr;
}

void AtomicFile::ThrowErrno(const char* action) const {
  const int error_number = errno;
  throw IoError(error_number, path_,
                StrCat("cannot ", action, " ", path_, ": ", std::strerror(error_number),
                       "; what was there before is untouched"));
}

}  // namespace lattice_bpd
