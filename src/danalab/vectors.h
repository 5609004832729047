// Vectors of floats, as wide as a register of the target, in the portable form of GCC and Clang, and elementary functions
// of them.
//
// Every function has one fixed order of operations for each element, so that a result does not depend on what else is
// computed beside it.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__SSE4_1__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(DANALAB_LANES)  // tests: the code of wider vectors on any CPU
constexpr int LANES = DANALAB_LANES;
#elif defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

inline int64_t padded(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

inline Vector load(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// Signed bytes as floats, by the target's instructions: GCC 12 would convert them one by one.
inline Vector load(const int8_t* from) {
#if defined(DANALAB_LANES)
#elif defined(__AVX512F__)
  return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif defined(__SSE4_1__)
  return (Vector)_mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_loadu_si32(from)));
#elif defined(__ARM_NEON)
  int32_t four;
  std::memcpy(&four, from, sizeof four);
  return (Vector)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
#endif
  Bytes b;
  std::memcpy(&b, from, sizeof b);
  return __builtin_convertvector(__builtin_convertvector(b, Integers), Vector);
}

// Reinterpreted, not converted.
inline Vector as_floats(Integers bits) { return (Vector)bits; }

// The compiler would rather load a value again for each of its uses.
inline void keep_in_register(Vector& v) {
#if defined(DANALAB_LANES)
  (void)v;
#elif defined(__SSE4_1__)
  asm("" : "+v"(v));
#elif defined(__ARM_NEON)
  asm("" : "+w"(v));
#else
  (void)v;
#endif
}

inline void store(float* to, Vector v) { std::memcpy(to, &v, sizeof v); }

// The first n lanes; the others are 0.
inline Vector load(const float* from, int64_t n) {
  if (n >= LANES) return load(from);
  Vector v = {};
  std::memcpy(&v, from, size_t(n) * sizeof(float));
  return v;
}

inline void store(float* to, Vector v, int64_t n) { std::memcpy(to, &v, size_t(n < LANES ? n : LANES) * sizeof(float)); }

// x in every lane. Vector{} + x would be an addition, for -0 + 0 is 0.
inline Vector all(float x) { return x - Vector{}; }

inline float sum(Vector v) {
  float part[LANES];
  store(part, v);
  for (int step = LANES / 2; step; step /= 2)
    for (int i = 0; i < step; i++) part[i] += part[i + step];
  return part[0];
}

inline float largest(Vector v) {
  float most = v[0];
  for (int lane = 1; lane < LANES; lane++) most = v[lane] > most ? v[lane] : most;
  return most;
}

inline float sum(const float* x, int64_t n) {
  Vector total = {};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) total += load(x + i);
  float rest = sum(total);
  for (; i < n; i++) rest += x[i];
  return rest;
}

// Sum of (x - shift)^2.
inline float sum_of_squares(const float* x, int64_t n, float shift) {
  Vector total = {};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const Vector d = load(x + i) - shift;
    total += d * d;
  }
  float rest = sum(total);
  for (; i < n; i++) rest += (x[i] - shift) * (x[i] - shift);
  return rest;
}

// e^x for x <= 88, with a relative error of 2e-7; below -87 about 1e-38.
inline Vector exponential(Vector x) {
  const Vector least = all(-87.0f), most = all(88.0f);
  x = x < least ? least : x;
  x = x > most ? most : x;
  const Vector shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the sum's last bits are the rounded exponent
  const Vector n = shifted - 12582912.0f;
  Vector r = x - n * 0.693145752f;  // ln 2 in two parts
  r = r - n * 1.42860677e-6f;
  Vector p = r * 0.0013888889f + 0.0083333333f;
  p = p * r + 0.041666667f;
  p = p * r + 0.16666667f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
  return p * as_floats(power);
}

inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

inline Vector silu(Vector x) { return x * sigmoid(x); }

inline Vector tanh_of(Vector x) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * x)); }

// Abramowitz and Stegun 7.1.26: absolute error 1.5e-7.
inline Vector erf_of(Vector x) {
  const Vector positive = x < 0.0f ? -x : x;
  const Vector t = 1.0f / (1.0f + 0.3275911f * positive);
  Vector p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Vector y = 1.0f - p * t * exponential(-positive * positive);
  return x < 0.0f ? -y : y;
}

inline Vector gelu(Vector x) { return 0.5f * x * (1.0f + erf_of(x * 0.70710678f)); }

inline Vector gelu_tanh(Vector x) {
  return 0.5f * x * (1.0f + tanh_of(0.79788456f * (x + 0.044715f * x * x * x)));
}

// Equal shares of n items for threads: thread `me` of `all` has [from, to).
struct Share {
  int64_t from, to;
  Share(int64_t from, int64_t to) : from(from), to(to) {}
  Share(int64_t n, int me, int all) : from(n * me / all), to(n * (me + 1) / all) {}
};
