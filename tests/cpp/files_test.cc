// Mapped files and files that are replaced as a whole.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "lattice_bpd/base/atomic_file.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/mapped_file.h"
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

int ErrnoOf(const std::string& path) {
  try {
    const MappedFile file(path);
  } catch (const IoError& error) {
    CHECK(error.path() == path);
    CHECK(std::string(error.what()).find(path) != std::string::npos);
    return error.error_number();
  }
  return 0;
}

TEST_CASE("mapped file: the bytes of the file, an empty one too") {
  TemporaryFolder folder;
  const std::string path = folder.File("bytes");
  WriteBytes(path, std::string("a\0b", 3));
  const MappedFile file(path);
  CHECK(file.size() == 3);
  CHECK(std::memcmp(file.data(), "a\0b", 3) == 0);
  CHECK(file.path() == path);

  const std::string empty = folder.File("empty");
  WriteBytes(empty, "");
  CHECK(MappedFile(empty).size() == 0);
}

TEST_CASE("mapped file: what cannot be mapped is an IoError with the system's number") {
  const TemporaryFolder folder;
  CHECK(ErrnoOf(folder.path() + "/missing") == ENOENT);
  CHECK(ErrnoOf(folder.path()) == EISDIR);
  CHECK(ErrnoOf("/dev/null") == EINVAL);
}

TEST_CASE("mapped file: a mapping outlives the file's replacement") {
  TemporaryFolder folder;
  const std::string path = folder.File("replaced");
  WriteBytes(path, "old");
  const MappedFile file(path);
  AtomicFile replacement(path);
  replacement.Write("new contents");
  replacement.Commit();
  CHECK(std::memcmp(file.data(), "old", 3) == 0);
  CHECK(ReadBytes(path) == "new contents");
}

TEST_CASE("atomic file: nothing happens to the path before Commit") {
  TemporaryFolder folder;
  const std::string path = folder.File("kept");
  WriteBytes(path, "old");
  {
    AtomicFile file(path);
    file.Write("new");
    CHECK(ReadBytes(path) == "old");
  }
  CHECK(ReadBytes(path) == "old");
  {
    AtomicFile file(path);
    file.Write("ne");
    file.Write("w", 1);
    file.Commit();
  }
  CHECK(ReadBytes(path) == "new");
  CHECK(::unlink(path.c_str()) == 0);
  CHECK(::rmdir(folder.path().c_str()) == 0);  // fails where a temporary file was left behind
}

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
  AtomicFile file(path);
  file.Write("new");
  disk_calls.clear();
  fsync_error = ENOSPC;
  int found = 0;
  try {
    file.Commit();
  } catch (const IoError& error) {
    found = error.error_number();
  }
  fsync_error = 0;
  CHECK(found == ENOSPC);
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

TEST_CASE("atomic file: folders and missing folders are refused at once") {
  const TemporaryFolder folder;
  const auto error_number = [](const std::string& path) {
    try {
      const AtomicFile file(path);
    } catch (const IoError& error) {
      return error.error_number();
    }
    return 0;
  };
  CHECK(error_number(folder.path()) == EISDIR);
  CHECK(error_number(folder.path() + "/missing/file") == ENOENT);
}

TEST_CASE("atomic file: a symbolic link stays, and the file that it leads to is written") {
  TemporaryFolder folder;
  const std::string file = folder.File("file");
  const std::string link = folder.File("link");
  const std::string cycle = folder.File("cycle");
  REQUIRE(::symlink("file", link.c_str()) == 0);  // relative to the folder of the link
  REQUIRE(::symlink("cycle", cycle.c_str()) == 0);
  for (const char* text : {"new", "newer"}) {
    AtomicFile writer(link);
    writer.Write(std::string(text));
    writer.Commit();
    CHECK(ReadBytes(file) == text);
  }
  struct stat status;
  REQUIRE(::lstat(link.c_str(), &status) == 0);
  CHECK(S_ISLNK(status.st_mode));
  CHECK_THROWS_AS(AtomicFile{cycle}, IoError);
}

TEST_CASE("atomic file: a pipe is not replaced, neither directly nor through a link") {
  TemporaryFolder folder;
  const std::string pipe = folder.File("pipe");
  const std::string link = folder.File("link");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  REQUIRE(::symlink(pipe.c_str(), link.c_str()) == 0);
  for (const std::string& path : {pipe, link}) {
    CHECK_THROWS_WITH_AS(AtomicFile{path}, doctest::Contains("not a regular file"), IoError);
  }
  struct stat status;
  CHECK(::stat(link.c_str(), &status) == 0);
  CHECK(S_ISFIFO(status.st_mode));
}

}  // namespace
}  // namespace lattice_bpd
