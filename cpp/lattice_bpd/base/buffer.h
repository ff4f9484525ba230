// A growing array of plain values that keeps its memory and does not touch what it has not been
// given: std::vector zeroes every element that resize adds.
#ifndef LATTICE_BPD_BASE_BUFFER_H_
#define LATTICE_BPD_BASE_BUFFER_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>

namespace lattice_bpd {

template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved as bytes");

 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }

  void Clear() { size_ = 0; }

  // New elements have no value yet.
  void Resize(std::size_t size) {
    Reserve(size);
    size_ = size;
  }

  void Append(const T& value) {
    if (size_ == capacity_) Reserve(size_ + 1);
    data_[size_++] = value;
  }

  void Reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    capacity_ = capacity < 2 * capacity_ ? 2 * capacity_ : capacity;
    std::unique_ptr<T[]> larger(new T[capacity_]);  // not make_unique: that sets all to zero
    if (size_ != 0) std::memcpy(larger.get(), data_.get(), size_ * sizeof(T));
    data_ = std::move(larger);
  }

 private:
  std::unique_ptr<T[]> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_BUFFER_H_
