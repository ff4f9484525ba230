// Writing a file so that its path holds either the old contents or all of the new.
//
//   AtomicFile file("lm.bin");
//   file.Write(bytes, size);
//   file.Commit();   // flushes to the disk and renames; without it nothing is left behind
//
// A writer that is killed leaves lm.bin.tmp.XXXXXX, which the next writer of lm.bin removes; what
// one that is alive writes is locked, and stays. Symbolic links are followed; devices and pipes are
// refused.
#ifndef LATTICE_BPD_BASE_ATOMIC_FILE_H_
#define LATTICE_BPD_BASE_ATOMIC_FILE_H_

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>

namespace lattice_bpd {

class AtomicFile {
 public:
  // Opens a temporary file beside `path`, after removing those that killed writers left. This and
  // the calls below throw IoError.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void Write(const void* data, std::size_t size);
  void Write(const std::string& text) { Write(text.data(), text.size()); }
  void Commit();

 private:
  [[noreturn]] void ThrowErrno(const char* action) const;

  std::string path_;
  std::string temporary_path_;
  std::unique_ptr<char[]> buffer_;
  std::FILE* file_ = nullptr;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_ATOMIC_FILE_H_
