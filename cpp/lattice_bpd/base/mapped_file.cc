#include "lattice_bpd/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/huge_pages.h"

namespace lattice_bpd {
namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void ThrowErrno(const std::string& path, const char* action) {
  const int error_number = errno;
  throw IoError(error_number, path,
                StrCat("cannot ", action, " ", path, ": ", std::strerror(error_number)));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file(path);
  if (file.get() < 0) ThrowErrno(path, "open");
  struct stat status;
  if (::fstat(file.get(), &status) != 0) ThrowErrno(path, "examine");
  if (S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    ThrowErrno(path, "read");
  }
  if (!S_ISREG(status.st_mode)) {
    errno = EINVAL;
    ThrowErrno(path, "map (it is not a regular file; copy it to one first)");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // an empty mapping is refused by the system
  void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) ThrowErrno(path, "map");
  data_ = static_cast<const unsigned char*>(mapping);
  PreferHugePages(data_, size_);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<unsigned char*>(data_), size_);
}

}  // namespace lattice_bpd
