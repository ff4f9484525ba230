// A file read through memory mapping: shared between processes, paged in as it is used.
#ifndef LATTICE_BPD_BASE_MAPPED_FILE_H_
#define LATTICE_BPD_BASE_MAPPED_FILE_H_

#include <cstddef>
#include <string>

namespace lattice_bpd {

class MappedFile {
 public:
  // Throws IoError where the file cannot be opened or mapped, or is not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* data() const { return data_; }
  std::size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_MAPPED_FILE_H_
