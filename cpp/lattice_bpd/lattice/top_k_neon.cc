// The top-k scan with NEON: 4 logits a compare. Every 64-bit ARM processor has it.
#include "lattice_bpd/lattice/top_k_kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include "lattice_bpd/lattice/top_k_scan.h"

namespace lattice_bpd {
namespace {

struct Neon {
  struct Vector {
    float32x4_t part[4];
  };
  struct Mask {
    uint32x4_t part[4];
  };
  static constexpr bool kCountsRanks = true;
  typedef float Floats __attribute__((vector_size(16)));
  typedef std::int64_t Keys __attribute__((vector_size(16)));

  template <typename Element>
  static Vector Load(const char* at) {
    Vector out;
    for (int i = 0; i < 4; ++i) out.part[i] = LoadAs(at + 4 * i * Element::kBytes, Element());
    return out;
  }
  static Vector Fill(float x) {
    Vector out;
    for (float32x4_t& part : out.part) part = vdupq_n_f32(x);
    return out;
  }
  static void Store(const Vector& v, float* at) {
    for (int i = 0; i < 4; ++i) vst1q_f32(at + 4 * i, v.part[i]);
  }
  // Not vmaxq_f32, which returns NaN; vmaxnmq_f32 drops a quiet NaN but not a signalling one.
  static Vector Max(const Vector& a, const Vector& b) {
    return Map(a, b, [](float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); });
  }
  static Vector Add(const Vector& a, const Vector& b) {
    return Map(a, b, [](float32x4_t x, float32x4_t y) { return vaddq_f32(x, y); });
  }
  static Vector Subtract(const Vector& a, const Vector& b) {
    return Map(a, b, [](float32x4_t x, float32x4_t y) { return vsubq_f32(x, y); });
  }
  static Vector Multiply(const Vector& a, const Vector& b) {
    return Map(a, b, [](float32x4_t x, float32x4_t y) { return vmulq_f32(x, y); });
  }
  static Vector PowerOfTwo(const Vector& v, Vector* rounded) {
    Vector out;
    for (int i = 0; i < 4; ++i) {
      const int32x4_t exponent = vcvtnq_s32_f32(v.part[i]);
      rounded->part[i] = vcvtq_f32_s32(exponent);
      out.part[i] = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(exponent, vdupq_n_s32(127)), 23));
    }
    return out;
  }

  static Mask NotBelow(const Vector& v, const Vector& t) {
    Mask out;
    for (int i = 0; i < 4; ++i) out.part[i] = vmvnq_u32(vcltq_f32(v.part[i], t.part[i]));
    return out;
  }
  static Mask Above(const Vector& v, const Vector& t) {
    Mask out;
    for (int i = 0; i < 4; ++i) out.part[i] = vmvnq_u32(vcleq_f32(v.part[i], t.part[i]));
    return out;
  }
  static Mask Or(const Mask& a, const Mask& b) {
    Mask out;
    for (int i = 0; i < 4; ++i) out.part[i] = vorrq_u32(a.part[i], b.part[i]);
    return out;
  }
  static bool Any(const Mask& mask) {
    const uint32x4_t low = vorrq_u32(mask.part[0], mask.part[1]);
    return vmaxvq_u32(vorrq_u32(low, vorrq_u32(mask.part[2], mask.part[3]))) != 0;
  }
  static std::uint32_t Bits(const Mask& mask) {
    const uint32x4_t lane_bits = {1, 2, 4, 8};
    std::uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= vaddvq_u32(vandq_u32(mask.part[i], lane_bits)) << (4 * i);
    return bits;
  }

 private:
  static uint16x4_t LoadHalves(const char* at) {
    return vreinterpret_u16_u8(vld1_u8(reinterpret_cast<const std::uint8_t*>(at)));
  }
  static float32x4_t LoadAs(const char* at, Float32Element) {
    return vreinterpretq_f32_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(at)));
  }
  static float32x4_t LoadAs(const char* at, Float16Element) {
    return vcvt_f32_f16(vreinterpret_f16_u16(LoadHalves(at)));
  }
  static float32x4_t LoadAs(const char* at, BFloat16Element) {
    return vreinterpretq_f32_u32(vshll_n_u16(LoadHalves(at), 16));
  }
  template <typename Operation>
  static Vector Map(const Vector& a, const Vector& b, const Operation& operation) {
    Vector out;
    for (int i = 0; i < 4; ++i) out.part[i] = operation(a.part[i], b.part[i]);
    return out;
  }
};

}  // namespace

TopKKernel TopKNeon() {
  return {"neon", &ScanRow<Neon>, &SortCandidates<Neon>, &SumExpOfRow<Neon>};
}

}  // namespace lattice_bpd

#else

namespace lattice_bpd {
TopKKernel TopKNeon() { return {"neon", nullptr, nullptr, nullptr}; }
}  // namespace lattice_bpd

#endif
