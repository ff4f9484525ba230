// Reads a file at any offset, from any number of threads; unlike mapping, with bounded memory.
#ifndef LATTICE_BPD_BASE_FILE_READER_H_
#define LATTICE_BPD_BASE_FILE_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace lattice_bpd {

class FileReader {
 public:
  // Throws IoError where the path cannot be opened or is not a regular file.
  static std::shared_ptr<const FileReader> Open(const std::string& path);

  // What a file with these bytes would be, without one.
  static std::shared_ptr<const FileReader> FromBytes(std::string bytes, const std::string& name);

  // Takes the descriptor over. name: what messages call the file.
  FileReader(int descriptor, const std::string& name);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }

  // Reads all of `size` bytes. Throws IoError, also where the file has become shorter.
  void ReadAt(std::uint64_t offset, void* data, std::size_t size) const;

 private:
  [[noreturn]] void ThrowErrno(int error_number, const char* action) const;

  FileReader() = default;

  int descriptor_ = -1;  // none: bytes_
  std::string name_;
  std::string bytes_;
  std::uint64_t size_ = 0;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_FILE_READER_H_
