#include "lattice_bpd/base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/huge_pages.h"

namespace lattice_bpd {
namespace {

// mkostemp makes the file private; give it the permissions an ordinary new file would have.
mode_t DefaultMode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

// The path that a chain of symbolic links leads to, which need not exist.
std::string FollowLinks(const std::string& path) {
  std::filesystem::path target(path);
  std::error_code error;
  while (std::filesystem::is_symlink(target, error)) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) break;
    target = target.parent_path() / next;
  }
  return target.string();
}

constexpr char kSuffix[] = ".tmp.XXXXXX";

// Removes what killed writers of the same path have left: temporary files that are not locked.
void RemoveLeftovers(const std::string& path) {
  const std::filesystem::path target(path);
  const std::filesystem::path parent = target.has_parent_path() ? target.parent_path() : ".";
  const std::string start = target.filename().string() + ".tmp.";
  std::error_code ignored;  // whatever fails here, writing itself will say
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() != start.size() + 6 || name.compare(0, start.size(), start) != 0) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(entry.path().c_str());
    ::close(fd);
  }
}

// A new file under a name that begins with *path, which becomes that name; locked while it is open.
int CreateLocked(std::string* path) {
  const std::string pattern = *path + kSuffix;
  for (;;) {
    *path = pattern;
    const int fd = ::mkostemp(path->data(), O_CLOEXEC);
    if (fd < 0) return fd;
    ::flock(fd, LOCK_EX);  // file systems without locks keep leftovers
    struct stat status;
    if (::fstat(fd, &status) != 0 || status.st_nlink > 0) return fd;
    ::close(fd);  // another writer took it for a leftover before it was locked
  }
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ELOOP) ThrowErrno("write");
  } else if (!S_ISREG(status.st_mode)) {
    errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;  // renaming would replace a device or pipe
    ThrowErrno(S_ISDIR(status.st_mode) ? "write" : "replace (it is not a regular file)");
  }
  path_ = FollowLinks(path);
  temporary_path_ = path_;
  RemoveLeftovers(path_);
  const int fd = CreateLocked(&temporary_path_);
  if (fd < 0) ThrowErrno("create a temporary file beside");
  ::fchmod(fd, DefaultMode());
  file_ = ::fdopen(fd, "wb");
  if (file_ == nullptr) ThrowErrno("open a temporary file beside");
  // Written in such pieces, the file's pages can be huge ones for the next process that maps it.
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
