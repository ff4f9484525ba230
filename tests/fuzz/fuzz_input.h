// What a fuzzer's bytes become: a file that LoadLm and the other readers take.
#ifndef LATTICE_BPD_TESTS_FUZZ_FUZZ_INPUT_H_
#define LATTICE_BPD_TESTS_FUZZ_FUZZ_INPUT_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace lattice_bpd {

// A file in memory under a path of its own.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : descriptor_(::memfd_create("fuzz", 0)) {
    const auto size = static_cast<ssize_t>(bytes.size());
    if (descriptor_ < 0 || ::write(descriptor_, bytes.data(), bytes.size()) != size) std::abort();
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// `bytes` with `value` written at `offset`; unchanged where it does not fit.
template <typename T>
void Overwrite(std::string* bytes, std::size_t offset, const T& value) {
  if (offset > bytes->size() || sizeof value > bytes->size() - offset) return;
  bytes->replace(offset, sizeof value, reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_FUZZ_FUZZ_INPUT_H_
