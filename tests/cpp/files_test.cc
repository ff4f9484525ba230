// Files that are replaced as a whole: the order of flush and rename, failures, leftovers.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "lattice_bpd/base/atomic_file.h"
#include "lattice_bpd/base/errors.h"
#include "lm_examples.h"

namespace {

// Calls of the file system, in order: "fsync 3" with the file's size then, "rename".
std::vector<std::string> disk_calls;
int fsync_error = 0;  // what fsync fails with; 0: it does not

}  // namespace

// These replace the C library's own. They record the call and forward it to the kernel.
extern "C" int fsync(int fd) {
  struct stat status;
  disk_calls.push_back("fsync " +
                       std::to_string(::fstat(fd, &status) == 0 ? status.st_size : off_t{-1}));
  if (fsync_error != 0) {
    errno = fsync_error;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  disk_calls.emplace_back("rename");
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace lattice_bpd {
namespace {

TEST_CASE("atomic file: all bytes are on the disk before the path means the new file") {
  TemporaryFolder folder;
  const std::string path = folder.File("kept");
  AtomicFile file(path);
  file.Write("twelve bytes");
  disk_calls.clear();
  file.Commit();
  CHECK(disk_calls == std::vector<std::string>{"fsync 12", "rename"});
}

TEST_CASE("atomic file: what the disk does not take leaves the old file") {
  TemporaryFolder folder;
  const std::string path = folder.File("kept");
  WriteBytes(path, "old");
  int found = 0;
  try {
    AtomicFile file(path);
    file.Write("new");
    disk_calls.clear();
    fsync_error = ENOSPC;
    file.Commit();
  } catch (const IoError& error) {
    found = error.error_number();
  }
  fsync_error = 0;
  CHECK(found == ENOSPC);
  const std::filesystem::directory_iterator files(folder.path());
  CHECK(std::distance(begin(files), end(files)) == 1);
  CHECK(disk_calls == std::vector<std::string>{"fsync 3"});
  CHECK(ReadBytes(path) == "old");
}

TEST_CASE("atomic file: what killed writers left is removed, what others are writing is not") {
  TemporaryFolder folder;
  const std::string path = folder.File("kept");
  const std::string left = folder.File("kept.tmp.a1B2c3");
  const std::string others[] = {folder.File("kept.tmp.a1B2c3d"), folder.File("kep.tmp.a1B2c3"),
                                folder.File("kept.tmp"), folder.File("Kept.tmp.a1B2c3")};
  WriteBytes(left, "half");
  for (const std::string& other : others) WriteBytes(other, "mine");
  AtomicFile first(path);
  first.Write("first");
  CHECK(::access(left.c_str(), F_OK) != 0);
  {
    AtomicFile second(path);
    second.Write("second");
    second.Commit();
  }
  CHECK(ReadBytes(path) == "second");
  first.Commit();
  CHECK(ReadBytes(path) == "first");
  for (const std::string& other : others) CHECK(ReadBytes(other) == "mine");
}

}  // namespace
}  // namespace lattice_bpd
