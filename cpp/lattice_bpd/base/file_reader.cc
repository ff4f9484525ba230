#include "lattice_bpd/base/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {

std::shared_ptr<const FileReader> FileReader::Open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0) return std::make_shared<const FileReader>(descriptor, path);
  const int error_number = errno;
  throw IoError(error_number, path,
                StrCat("cannot open ", path, ": ", std::strerror(error_number)));
}

std::shared_ptr<const FileReader> FileReader::FromBytes(std::string bytes,
                                                        const std::string& name) {
  std::shared_ptr<FileReader> reader(new FileReader());
  reader->name_ = name;
  reader->size_ = bytes.size();
  reader->bytes_ = std::move(bytes);
  return reader;
}

FileReader::FileReader(int descriptor, const std::string& name)
    : descriptor_(descriptor), name_(name) {
  struct stat status;
  int problem = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (problem == 0 && S_ISDIR(status.st_mode)) problem = EISDIR;
  if (problem == 0 && !S_ISREG(status.st_mode)) problem = EINVAL;
  if (problem != 0) {
    ::close(descriptor_);
    ThrowErrno(problem, "read (expected a regular file)");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileReader::~FileReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileReader::ReadAt(std::uint64_t offset, void* data, std::size_t size) const {
  auto* out = static_cast<unsigned char*>(data);
  if (descriptor_ < 0) {
    if (offset > size_ || size > size_ - offset) ThrowErrno(EIO, "read");
    if (size != 0) std::memcpy(out, bytes_.data() + offset, size);  // `data` may be null
    return;
  }
  while (size > 0) {
    const ssize_t count = ::pread(descriptor_, out, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) ThrowErrno(count < 0 ? errno : EIO, "read");
    out += count;
    offset += static_cast<std::uint64_t>(count);
    size -= static_cast<std::size_t>(count);
  }
}

void FileReader::ThrowErrno(int error_number, const char* action) const {
  throw IoError(error_number, name_,
                StrCat("cannot ", action, " ", name_, ": ", std::strerror(error_number)));
}

}  // namespace lattice_bpd
