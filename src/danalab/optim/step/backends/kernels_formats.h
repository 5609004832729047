// Moments of fewer bytes: a chunk is decoded into float32 that stays in the first-level cache, updated there, and rounded
// at random. The arithmetic of danalab/optim/step/state_formats.py, which says what the formats are.

// Included by kernels.cpp, whose Tensors, hash32 and conversions it takes.

namespace formats {

enum Format { FLOAT32, BF16_8, CODES };  // as FORMATS in state_formats.py

constexpr int64_t chunk = 1024, block = 256;  // values that share a scale: at most `block` of a row

// The first of the 16 bits of an element's noise that round a moment; bf16+8 takes the upper 8 of these.
constexpr int bits_of_m = 16, bits_of_v = 0, bits_of_third = 8;

inline float joined(uint16_t high, uint8_t low) { return float_of(uint32_t(high) << 16 | uint32_t(low) << 8); }

inline void join(const uint16_t* __restrict high, const uint8_t* __restrict low, float* __restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = joined(high[i], low[i]);
}

// Args: first: of the 8 bits of noise.
inline void split(const float* __restrict x, uint16_t* __restrict high, uint8_t* __restrict low,
                  const uint32_t* __restrict noise, int first, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = bits_of(x[i]);
    const uint32_t finite = (u & 0x7F800000u) != 0x7F800000u;
    const uint32_t rounded = u + (finite ? noise[i] >> first & 255u : 0u);
    high[i] = uint16_t(rounded >> 16);
    low[i] = uint8_t(rounded >> 8);
  }
}

// Code: int8_t or uint8_t. Values are scale (code / levels)^2, or ^4 where FOURTH.
template <class Code, bool FOURTH>
struct Codes {
  static constexpr float levels = std::is_signed_v<Code> ? 127.0f : 255.0f;

  static void decode(const Code* __restrict codes, float scale, float* __restrict x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float root = float(int32_t(codes[i])) * (1 / levels);
      const float square = root * std::fabs(root);
      x[i] = (FOURTH ? square * square : square) * scale;
    }
  }

  // Returns the new scale.
  static float encode(const float* __restrict x, Code* __restrict codes, float scale, const uint32_t* __restrict noise,
                      int first, int64_t n) {
    uint32_t most = 0;  // of the bits: NaN is larger than all numbers
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t u = bits_of(x[i]) & 0x7FFFFFFFu;
      most = u > most ? u : most;
    }
    const float largest = float_of(most);
    if (!(largest <= scale && largest > 0.5f * scale)) scale = 1.25f * largest;
    const float inverse = scale >= std::numeric_limits<float>::min() ? 1 / scale : 0.0f;
    const float power = FOURTH ? levels * levels * levels * levels : levels * levels;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      float share = std::fabs(x[i]) * inverse;
      share = share >= 0 ? share : 0.0f;  // NaN
      const float powered = share * power, square = FOURTH ? std::sqrt(powered) : powered, root = std::sqrt(square);
      const int32_t whole = int32_t(root < levels - 1 ? root : levels - 1);
      const float below = float(whole), below2 = below * below;
      float excess = square - below2, gap = 2 * below + 1;
      if (FOURTH) {
        excess *= square + below2;
        gap *= 2 * below2 + 2 * below + 1;
      }
      const float at = (float(int32_t(noise[i] >> first & 0xFFFFu)) + 0.5f) * 0x1p-16f;
      int32_t code = whole + (excess > at * gap ? 1 : 0);
      if (FOURTH) code = code > (share > 0 ? 1 : 0) ? code : (share > 0 ? 1 : 0);
      codes[i] = Code(std::is_signed_v<Code> && x[i] < 0 ? -code : code);
    }
    return scale;
  }
};

// A moment as it is stored: bfloat16 and further bits, or codes and scales.
template <class Code, bool FOURTH, int FIRST>
struct Moment {
  void *stored, *rest;
  int64_t columns;

  int64_t scale_of(int64_t i) const { return i / columns * ((columns + block - 1) / block) + i % columns / block; }

  void decode(int format, int64_t from, float* x, int64_t n) const {
    if (!stored) return;
    if (format == BF16_8) {
      join(static_cast<uint16_t*>(stored) + from, static_cast<uint8_t*>(rest) + from, x, n);
    } else {
      Codes<Code, FOURTH>::decode(static_cast<Code*>(stored) + from, static_cast<float*>(rest)[scale_of(from)], x, n);
    }
  }
  void encode(int format, int64_t from, const float* x, const uint32_t* noise, int64_t n) const {
    if (!stored) return;
    if (format == BF16_8) {
      split(x, static_cast<uint16_t*>(stored) + from, static_cast<uint8_t*>(rest) + from, noise, FIRST + 8, n);
    } else {
      float& scale = static_cast<float*>(rest)[scale_of(from)];
      scale = Codes<Code, FOURTH>::encode(x, static_cast<Code*>(stored) + from, scale, noise, FIRST, n);
    }
  }
};

// Start of the first block at i or after it.
inline int64_t block_start(int64_t i, int64_t columns) {
  const int64_t column = i % columns, up = (column + block - 1) / block * block;
  return i - column + (up < columns ? up : columns);
}

// End of the piece that begins at i, which has one scale.
inline int64_t piece_end(int format, int64_t i, int64_t end, int64_t columns) {
  if (format == BF16_8) return i + chunk < end ? i + chunk : end;
  const int64_t column = i % columns, left = columns - column;
  return i + (left < block ? left : block);
}

// The update of n elements in float32, at the start of these arrays. Args: rule: what it was given.
using Step = void (*)(const void* rule, float* p, const float* g, float* m, float* v, float* third, int64_t n);

// Elements [begin, end) of parameter k, float32 or bfloat16, by a step on chunks. With scales a thread takes the blocks
// that begin in its part.
inline void run(const Tensors& x, int64_t k, int64_t begin, int64_t end, uint32_t seed, Step step, const void* rule) {
  const int format = x.format[k];
  const int64_t columns = x.columns[k];
  const Moment<int8_t, false, bits_of_m> m{x.m[k], x.m_rest[k], columns};
  const Moment<uint8_t, true, bits_of_v> v{x.v[k], x.v_rest[k], columns};
  const Moment<uint8_t, false, bits_of_third> third{x.third[k], x.third_rest[k], columns};
  auto* const p = static_cast<float*>(x.p[k]);
  auto* const g = static_cast<const float*>(x.g[k]);
  auto* const p_high = static_cast<uint16_t*>(x.p[k]);
  auto* const p_rest = static_cast<uint8_t*>(x.p_rest[k]);
  auto* const g_high = static_cast<const bfloat16*>(x.g[k]);
  constexpr int64_t stride = chunk + 112;  // arrays 4096 bytes apart would share places in the cache
  alignas(64) float state[3][stride], wide[2][stride];
  alignas(64) uint32_t noise[stride];
  if (format == CODES) begin = block_start(begin, columns), end = block_start(end, columns);
  for (int64_t from = begin, until; from < end; from = until) {
    for (until = from; until < end;) {
      const int64_t next = piece_end(format, until, end, columns), at = until - from;
      if (next - from > chunk) break;
      m.decode(format, until, state[0] + at, next - until);
      v.decode(format, until, state[1] + at, next - until);
      third.decode(format, until, state[2] + at, next - until);
      until = next;
    }
    const int64_t n = until - from;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) noise[i] = hash32(uint32_t(from + i) * 0x9E3779B1u + seed);
    if (p_rest) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) wide[1][i] = load(g_high[from + i]);
      join(p_high + from, p_rest + from, wide[0], n);
      step(rule, wide[0], wide[1], state[0], state[1], state[2], n);
      split(wide[0], p_high + from, p_rest + from, noise, 0, n);
    } else {
      step(rule, p + from, g + from, state[0], state[1], state[2], n);
    }
    for (int64_t i = from; i < until;) {
      const int64_t next = piece_end(format, i, until, columns), at = i - from;
      m.encode(format, i, state[0] + at, noise + at, next - i);
      v.encode(format, i, state[1] + at, noise + at, next - i);
      third.encode(format, i, state[2] + at, noise + at, next - i);
      i = next;
    }
  }
}

}  // namespace formats
