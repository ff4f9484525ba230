// What a fuzzer's bytes become: a file that LoadLm and the other readers take, or random numbers.
#ifndef LATTICE_BPD_TESTS_FUZZ_FUZZ_INPUT_H_
#define LATTICE_BPD_TESTS_FUZZ_FUZZ_INPUT_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
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

// The bytes as a random generator (random_lattices.h): two for each number, and where they end, a
// sequence that they determine, so that loops which wait for a new number end.
class ByteSource {
 public:
  using result_type = std::uint16_t;
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }

  ByteSource(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  result_type operator()() {
    result_type number;
    if (at_ + sizeof number <= size_) {
      number = static_cast<result_type>(data_[at_] | data_[at_ + 1] << 8);
      at_ += sizeof number;
    } else {
      number = static_cast<result_type>(state_ >> 32);
    }
    state_ = (state_ + number) * 6364136223846793005u + 1442695040888963407u;
    return number;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
  std::uint64_t state_ = 0;
};

// `bytes` with `value` written at `offset`; unchanged where it does not fit.
template <typename T>
void Overwrite(std::string* bytes, std::size_t offset, const T& value) {
  if (offset > bytes->size() || sizeof value > bytes->size() - offset) return;
  bytes->replace(offset, sizeof value, reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_FUZZ_FUZZ_INPUT_H_
