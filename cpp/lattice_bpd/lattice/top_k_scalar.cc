// The top-k scan in plain C++: runs everywhere, and defines what the vector builds must do.
#include <cmath>

#include "lattice_bpd/lattice/top_k_scan.h"

namespace lattice_bpd {
namespace {

struct Scalar {
  struct Vector {
    float lane[16];
  };
  using Mask = std::uint32_t;
  static constexpr bool kCountsRanks = false;
  typedef float Floats __attribute__((vector_size(16)));
  typedef std::int64_t Keys __attribute__((vector_size(16)));

  template <typename Element>
  static Vector Load(const char* at) {
    Vector out;
    for (int i = 0; i < 16; ++i) out.lane[i] = Element::Load(at + i * Element::kBytes);
    return out;
  }
  static Vector Fill(float x) {
    Vector out;
    for (float& lane : out.lane) lane = x;
    return out;
  }
  static void Store(const Vector& v, float* at) { std::memcpy(at, v.lane, sizeof v.lane); }

  static Vector Max(const Vector& a, const Vector& b) {
    return Map(a, b, [](float x, float y) { return x > y ? x : y; });
  }
  static Vector Add(const Vector& a, const Vector& b) {
    return Map(a, b, [](float x, float y) { return x + y; });
  }
  static Vector Subtract(const Vector& a, const Vector& b) {
    return Map(a, b, [](float x, float y) { return x - y; });
  }
  static Vector Multiply(const Vector& a, const Vector& b) {
    return Map(a, b, [](float x, float y) { return x * y; });
  }
  static Vector PowerOfTwo(const Vector& v, Vector* rounded) {
    Vector out;
    for (int i = 0; i < 16; ++i) {
      rounded->lane[i] = std::nearbyint(v.lane[i]);
      const auto exponent = static_cast<std::int32_t>(rounded->lane[i]);
      out.lane[i] = BitsToFloat(static_cast<std::uint32_t>(exponent + 127) << 23);
    }
    return out;
  }

  static Mask NotBelow(const Vector& v, const Vector& t) {
    Mask mask = 0;
    for (int i = 0; i < 16; ++i) mask |= static_cast<Mask>(!(v.lane[i] < t.lane[i])) << i;
    return mask;
  }
  static Mask Above(const Vector& v, const Vector& t) {
    Mask mask = 0;
    for (int i = 0; i < 16; ++i) mask |= static_cast<Mask>(!(v.lane[i] <= t.lane[i])) << i;
    return mask;
  }
  static Mask Or(Mask a, Mask b) { return a | b; }
  static bool Any(Mask mask) { return mask != 0; }
  static std::uint32_t Bits(Mask mask) { return mask; }

 private:
  template <typename Operation>
  static Vector Map(const Vector& a, const Vector& b, const Operation& operation) {
    Vector out;
    for (int i = 0; i < 16; ++i) out.lane[i] = operation(a.lane[i], b.lane[i]);
    return out;
  }
};

}  // namespace

TopKKernel TopKScalar() {
  return {"scalar", &ScanRow<Scalar>, &SortCandidates<Scalar>, &SumExpOfRow<Scalar>};
}

}  // namespace lattice_bpd
