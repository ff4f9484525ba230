// Products of vectors with rows of a matrix, beside attention_kernel.h, whose vectors it uses, in
// the same builds. A result does not depend on the other vectors and rows.
namespace lattice_bpd {
namespace {

// GCC converts generic vectors of bytes one by one.
[[gnu::always_inline]] inline void Load(const std::int8_t* from, Floats* to) {
  Ints ints = {};
#if defined(__x86_64__)
  if constexpr (kLanes == 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m512i wide = _mm512_maskz_cvtepi8_epi32(0xffff, bytes);  // the other one warns
    std::memcpy(&ints, &wide, sizeof ints);
  } else if constexpr (kLanes == 8) {
    const __m256i wide =
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    std::memcpy(&ints, &wide, sizeof ints);
  }
#endif
  if constexpr (kLanes == 4) {
    for (int i = 0; i < kLanes; ++i) ints[i] = from[i];
  }
  *to = __builtin_convertvector(ints, Floats);
}

struct Float16 {
  std::uint16_t bits;
};

[[gnu::always_inline]] inline void Load(const Float16* from, Floats* to) {
#if defined(__x86_64__)
  if constexpr (kLanes == 16) {
    const __m512 wide =
        _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    std::memcpy(to, &wide, sizeof *to);
  } else if constexpr (kLanes == 8) {
    const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    std::memcpy(to, &wide, sizeof *to);
  }
#endif
  if constexpr (kLanes == 4) {
    float numbers[kLanes];
    for (int i = 0; i < kLanes; ++i) numbers[i] = Float16ToFloat(from[i].bits);
    std::memcpy(to, numbers, sizeof numbers);
  }
}

// Fused in each build that has such instructions, whatever the compiler would choose.
[[gnu::always_inline]] inline void AddProduct(const Floats* a, const Floats* b, Floats* sum) {
#if defined(__x86_64__)
  if constexpr (kLanes == 16) {
    __m512 x, y, z;
    std::memcpy(&x, a, sizeof x), std::memcpy(&y, b, sizeof y), std::memcpy(&z, sum, sizeof z);
    z = _mm512_fmadd_ps(x, y, z);
    std::memcpy(sum, &z, sizeof z);
  } else if constexpr (kLanes == 8) {
    __m256 x, y, z;
    std::memcpy(&x, a, sizeof x), std::memcpy(&y, b, sizeof y), std::memcpy(&z, sum, sizeof z);
    z = _mm256_fmadd_ps(x, y, z);
    std::memcpy(sum, &z, sizeof z);
  }
#endif
  if constexpr (kLanes == 4) *sum += *a * *b;
}

constexpr int kMostInputs = 6;  // at a time
constexpr std::size_t kLineBytes = 64;

// Rows at a time: their sums stay in registers.
constexpr int RowsOf(int inputs) {
  return inputs == 1 ? 8 : kLanes < 16 ? 2 : inputs == 2 ? 8 : inputs == 3 ? 6 : 4;
}

// kRows rows with kInputs vectors. With the first vectors, which read the rows from memory, the
// next rows are prefetched: the processor's own prefetcher is late where a row ends.
template <int kRows, int kInputs, bool kIsFirst, typename Number>
[[gnu::always_inline]] inline void MultiplyBlock(const Number* rows, const ProductTask& task,
                                                 const float* inputs, float* out) {
  const std::size_t columns = task.columns;
  constexpr int kUsed = kRows * kInputs, kSums = kUsed <= 8 ? 8 : kUsed <= 16 ? 16 : 32;
  Floats sums[kSums] = {};
  for (std::size_t d = 0; d < columns; d += kLanes) {
    Floats weights[kRows];
    for (int r = 0; r < kRows; ++r) Load(rows + r * columns + d, &weights[r]);
    if (kIsFirst && d % (kLineBytes / sizeof(Number)) == 0) {
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(rows + (kRows + r) * columns + d);
    }
    for (int i = 0; i < kInputs; ++i) {
      Floats input;
      Load(inputs + i * columns + d, &input);
#if defined(__x86_64__)
      if constexpr (kLanes > 4) asm("" : "+x"(input));  // read once, not by each product
#endif
      for (int r = 0; r < kRows; ++r) AddProduct(&input, &weights[r], &sums[kRows * i + r]);
    }
  }
  float dots[kSums];
  SumAll<kSums>(sums, dots);
  for (int i = 0; i < kInputs; ++i) {
    for (int r = 0; r < kRows; ++r) out[i * task.stride + r] = dots[kRows * i + r];
  }
}

template <int kInputs, bool kIsFirst, typename Number>
void MultiplyRows(const ProductTask& task, const float* inputs, float* out) {
  constexpr int kRows = RowsOf(kInputs);
  const auto* const rows = static_cast<const Number*>(task.rows);
  std::size_t row = 0;
  for (; row + kRows <= task.num_rows; row += kRows) {
    MultiplyBlock<kRows, kInputs, kIsFirst>(rows + row * task.columns, task, inputs, out + row);
  }
  for (; row < task.num_rows; ++row) {
    MultiplyBlock<1, kInputs, kIsFirst>(rows + row * task.columns, task, inputs, out + row);
  }
}

template <typename Number, int... kInputs>
void MultiplyGroups(const ProductTask& task, std::integer_sequence<int, kInputs...>) {
  using Function = void (*)(const ProductTask&, const float*, float*);
  constexpr Function kMultiply[][2] = {
      {&MultiplyRows<kInputs + 1, false, Number>, &MultiplyRows<kInputs + 1, true, Number>}...};
  std::size_t groups = (task.num_inputs + kMostInputs - 1) / kMostInputs;
  for (std::size_t i = 0, count; i < task.num_inputs; i += count, --groups) {
    count = (task.num_inputs - i + groups - 1) / groups;
    kMultiply[count - 1][i == 0](task, task.inputs + i * task.columns, task.out + i * task.stride);
  }
}

template <typename Number>
void Multiply(const ProductTask& task) {
  MultiplyGroups<Number>(task, std::make_integer_sequence<int, kMostInputs>());
}

void MultiplyFloats(const ProductTask& task, FloatType type) {
  if (type == FloatType::kBFloat16) {
    Multiply<std::uint16_t>(task);
  } else if (type == FloatType::kFloat16) {
    Multiply<Float16>(task);
  } else {
    Multiply<float>(task);
  }
}

}  // namespace
}  // namespace lattice_bpd
