// Borrowed views of arrays owned elsewhere. Values, cheap to copy.
#ifndef LATTICE_BPD_BASE_ARRAY_VIEW_H_
#define LATTICE_BPD_BASE_ARRAY_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lattice_bpd {

// A contiguous run of elements (std::span is C++20).
template <typename T>
class Span {
 public:
  Span() = default;
  Span(const T* data, std::size_t size) : data_(data), size_(size) {}
  Span(const std::vector<T>& values) : data_(values.data()), size_(values.size()) {}  // NOLINT

  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  Span Last(std::size_t n) const { return n >= size_ ? *this : Span(data_ + (size_ - n), n); }
  Span Slice(std::size_t begin, std::size_t end) const { return Span(data_ + begin, end - begin); }

 private:
  const T* data_ = nullptr;
  std::size_t size_ = 0;
};

enum class FloatType { kFloat32, kFloat16, kBFloat16 };

// Rows of logits of any float type and any strides (in bytes; negative ones too).
struct LogitsView {
  const void* data = nullptr;
  FloatType type = FloatType::kFloat32;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t column_stride = 0;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_ARRAY_VIEW_H_
