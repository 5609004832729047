// The element-wise rules for CPUs: one pass over memory, which reads p, g and the moments and writes p and the moments.
//
//   adana        m <- m + a (g - m)    v <- v + a (g^2 - v)    p <- k (p - lr (g + (growing + steady) m) / (sqrt(v) + eps))
//   dana_star    the same with a third moment, tau, which gives every coordinate a time of its own
//   adamw        p <- k (p - lr m c1 / (sqrt(v) c2 + eps))
//   ademamix     p <- k p - lr (m c1 + weight slow) / (sqrt(v) c2 + eps)
//
// They are the pure functions of dana.py, adamw.py and ademamix.py, arranged for few divisions. The loops are plain: the
// compiler makes vectors of the machine's width of them. All parameters form one line of elements that is cut evenly
// among the threads, so that many small tensors cost no more than a large one. Loaded through ctypes: no Python or torch
// headers.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#else
#include <functional>
#include <thread>
#include <vector>
#endif

namespace {

// Scalars of a group in a step, by the names of the pure functions; kernels.py fills them in, in this order.
struct Scalars {
  double lr, decay_factor, eps, gain, gain2, gain3, alpha, gamma3, alpha_offset, clipsnr, t, kappa;
  double correction1, correction2, weight;
  double sign;        // of gradients: -1 to maximize
  double stochastic;  // bool: 16-bit tensors are rounded at random
};

// A parameter of a step; kernels.py fills them in, in this order.
struct Item {
  void *p, *g, *m, *v, *third;
  int64_t *step;
  int64_t numel;
  int64_t format;  // of p and g, and of the moments: FLOAT, DOUBLE, ...
  int64_t scalars;
};

enum Format { FLOAT, DOUBLE, BFLOAT16, FLOAT_WITH_BFLOAT16, ALL_BFLOAT16 };

// ---- numbers ----

struct bfloat16 {
  uint16_t bits;
};

inline uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

inline float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

inline uint32_t hash32(uint32_t x) {  // as in base.py
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

inline float load(float x) { return x; }
inline double load(double x) { return x; }
inline float load(bfloat16 x) { return float_of(uint32_t(x.bits) << 16); }

// Rounds to bfloat16 to the nearest, or at random by a hash of the number's bits, its place and a seed, as in base.py.
struct Rounding {
  uint32_t seed;
  uint32_t random;  // all bits, or none

  Rounding(const Scalars& a, uint32_t which)
      : seed(hash32(hash32(uint32_t(int64_t(a.t))) + which)), random(a.stochastic != 0 ? ~0u : 0u) {}

  void operator()(float& to, float x, int64_t) const { to = x; }
  void operator()(double& to, double x, int64_t) const { to = x; }
  void operator()(bfloat16& to, float x, int64_t place) const {
    const uint32_t u = bits_of(x);
    const uint32_t noise = (random & (hash32(u + uint32_t(place) * 0x9E3779B1u + seed) >> 16)) | (~random & (0x7FFFu + ((u >> 16) & 1u)));
    const uint32_t special = u | ((u & 0x007FFFFFu) ? 0x00400000u : 0u);  // NaN stays NaN when cut
    to.bits = uint16_t(((u & 0x7F800000u) != 0x7F800000u ? u + noise : special) >> 16);
  }
};

template <class S>
inline S clamp(S x, S bound) {  // NaN passes
  x = x < -bound ? -bound : x;
  return x > bound ? bound : x;
}

// x^k for 1 <= x < 2^24 and 0 <= k <= 1, 5e-7 accurate: powf would cost more than all the rest and does not vectorise.
inline double power(double x, double k) { return std::pow(x, k); }
inline float power(float x, float k) {
  const int32_t u = int32_t(bits_of(x));
  const int32_t exponent = (u - 0x3F3504F3) >> 23;  // so that the mantissa is in [sqrt(1/2), sqrt(2))
  const float f = float_of(uint32_t(u - (exponent << 23))) - 1.0f;
  float log2 = 0.170633674f;  // log2(1 + f) / f, nearly minimax
  log2 = log2 * f - 0.272699058f;
  log2 = log2 * f + 0.297263116f;
  log2 = log2 * f - 0.358961672f;
  log2 = log2 * f + 0.480464995f;
  log2 = log2 * f - 0.721375883f;
  log2 = log2 * f + 1.442699671f;
  const float e = k * (log2 * f + float(exponent));
  const float shifted = e + 12582912.0f;  // 1.5 * 2^23: the sum's last bits are e, rounded
  const float r = e - (shifted - 12582912.0f);
  float exp2 = 0.001321867f;  // (2^r - 1) / r
  exp2 = exp2 * r + 0.009671698f;
  exp2 = exp2 * r + 0.055508930f;
  exp2 = exp2 * r + 0.240222380f;
  exp2 = exp2 * r + 0.693146884f;
  return float_of(bits_of(exp2 * r + 1.0f) + (bits_of(shifted) << 23));
}

// ---- rules: (g, m, v, third) -> the update before the learning rate; S is the type of arithmetic ----

template <class S>
struct Adana {
  static constexpr bool decays_first = false;
  const S eps, gain, growing, steady;

  explicit Adana(const Scalars& a)
      : eps(S(a.eps)), gain(S(a.gain)), growing(S(a.gamma3 * a.alpha)), steady(S(a.gamma3 * a.alpha_offset)) {}

  S operator()(S g, S& m, S& v, S&) const {
    m += gain * (g - m);
    v += gain * (g * g - v);
    return (g + (growing + steady) * m) / (std::sqrt(v) + eps);
  }
};

template <class S>
struct ClippedAdana : Adana<S> {
  const S clip;

  explicit ClippedAdana(const Scalars& a) : Adana<S>(a), clip(S(a.gamma3 * a.clipsnr)) {}

  S operator()(S g, S& m, S& v, S&) const {
    m += this->gain * (g - m);
    v += this->gain * (g * g - v);
    const S r = std::sqrt(v) + this->eps;
    return (g + (clamp(this->growing * m, clip * r) + this->steady * m)) / r;
  }
};

template <class S>
struct Adamw {
  static constexpr bool decays_first = false;
  const S eps, gain, gain2, first, root;

  explicit Adamw(const Scalars& a)
      : eps(S(a.eps)), gain(S(a.gain)), gain2(S(a.gain2)), first(S(1 / a.correction1)),
        root(S(1 / std::sqrt(a.correction2))) {}

  S operator()(S g, S& m, S& v, S&) const {
    m += gain * (g - m);
    v += gain2 * (g * g - v);
    return first * m / (std::sqrt(v) * root + eps);
  }
};

template <class S>
struct Ademamix : Adamw<S> {
  static constexpr bool decays_first = true;
  const S gain3, weight;

  explicit Ademamix(const Scalars& a) : Adamw<S>(a), gain3(S(a.gain3)), weight(S(a.weight)) {}

  S operator()(S g, S& m, S& v, S& slow) const {
    m += this->gain * (g - m);
    v += this->gain2 * (g * g - v);
    slow += gain3 * (g - slow);
    return (this->first * m + weight * slow) / (std::sqrt(v) * this->root + this->eps);
  }
};

// Elements [begin, end) of one parameter.
template <class Rule, bool THIRD, class S, class P, class M>
void run(const Scalars& a, P* __restrict p, const P* __restrict grad, M* __restrict m, M* __restrict v,
         M* __restrict third, int64_t begin, int64_t end) {
  const Rule rule(a);
  const Rounding round_p(a, 0), round_m(a, 1), round_v(a, 2), round_third(a, 3);
  const S lr = S(a.lr), keep = S(a.decay_factor), sign = S(a.sign);
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    S mi = load(m[i]), vi = load(v[i]), ti = THIRD ? S(load(third[i])) : S(0);
    const S step = rule(sign * load(grad[i]), mi, vi, ti);
    const S x = load(p[i]);
    round_p(p[i], Rule::decays_first ? keep * x - lr * step : keep * (x - lr * step), i);
    round_m(m[i], mi, i);
    round_v(v[i], vi, i);
    if (THIRD) round_third(third[i], ti, i);
  }
}

// The same for dana_star, in three short loops over blocks that stay in the first-level cache. As one loop, the chain of
// dependent operations from g to p is longer than a processor looks ahead, and it waits (a third slower).
template <bool CLIP, class S, class P, class M>
void run_star(const Scalars& a, P* __restrict p, const P* __restrict grad, M* __restrict m, M* __restrict v,
              M* __restrict tau, int64_t begin, int64_t end) {
  constexpr int64_t block = 128;
  alignas(64) S roots[block], times[block], momenta[block], shares[block];
  const Rounding round_p(a, 0), round_m(a, 1), round_v(a, 2), round_tau(a, 3);
  const S lr = S(a.lr), keep = S(a.decay_factor), eps = S(a.eps), sign = S(a.sign), gain = S(a.gain), t = S(a.t);
  const S growing = S(a.gamma3), steady = S(a.gamma3 * a.alpha_offset), clip = S(a.gamma3 * a.clipsnr);
  const S exponent = S(1 - a.kappa), least = S(1 / (2 + a.t));  // q >= 1 / (1 + t)
  for (int64_t from = begin; from < end; from += block) {
    const int64_t n = end - from < block ? end - from : block;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const int64_t i = from + j;
      const S g = sign * load(grad[i]), size = std::fabs(g);
      const S mi = load(m[i]) + gain * (g - load(m[i]));
      const S vi = load(v[i]) + gain * (g * g - load(v[i]));
      const S r = std::sqrt(vi) + eps;
      const S ti = load(tau[i]) + gain * (size / (size + r) - load(tau[i]));
      roots[j] = r;
      momenta[j] = mi;
      shares[j] = ti;
      round_m(m[i], mi, i);
      round_v(v[i], vi, i);
      round_tau(tau[i], ti, i);
    }
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const S time = shares[j] * t;
      times[j] = growing * power(time < 1 ? S(1) : time, exponent);
    }
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const int64_t i = from + j;
      const S r = roots[j], mi = momenta[j];
      S c = shares[j] < S(0.5) ? shares[j] : S(0.5);
      c = c < least ? least : c;
      const S n = std::sqrt(c / ((1 - c) * (r * r)));  // sqrt(q) / r
      const S damped = CLIP ? clamp(times[j] * mi, clip * n * (r * r)) : times[j] * mi;
      const S step = n * (sign * load(grad[i]) + damped + steady * mi);
      round_p(p[i], keep * (S(load(p[i])) - lr * step), i);
    }
  }
}

#if (defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__))
#define HAS_STAR

// dana_star on float32 in whole vectors of 16 or 8, by hand: the compiler's code for the loops above takes a third longer.
// With AVX-512 multipliers are the bottleneck: the share |g| / (|g| + r) and sqrt(q) use the divider, which runs beside
// them; 1/r and the root in r are the processor's 14-bit estimates with one Newton step, accurate to an ulp. With AVX2
// everything but sqrt(q) uses the divider, and bounds are applied to the bits, as integers.
namespace star {

#define INLINE __attribute__((always_inline)) inline

#ifdef __AVX512F__

constexpr int lanes = 16;
constexpr double least_exponent = -1;  // of the power: its polynomials are too short for others

using Vector = __m512;
constexpr int64_t block = 64;

inline Vector all(double x) { return _mm512_set1_ps(float(x)); }
INLINE Vector load(const float* from) { return _mm512_loadu_ps(from); }
INLINE void store(float* to, Vector a) { _mm512_storeu_ps(to, a); }
INLINE Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
INLINE Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
INLINE Vector ratio(Vector a, Vector b) { return _mm512_div_ps(a, b); }
INLINE Vector size_of(Vector a) { return _mm512_abs_ps(a); }
INLINE Vector larger(Vector a, Vector b) { return _mm512_max_ps(a, b); }
INLINE Vector smaller(Vector a, Vector b) { return _mm512_min_ps(a, b); }
INLINE Vector flip(Vector a, Vector signs) { return _mm512_xor_ps(a, signs); }
INLINE Vector mul_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
INLINE Vector mul_sub(Vector a, Vector b, Vector c) { return _mm512_fmsub_ps(a, b, c); }    // a b - c
INLINE Vector sub_from(Vector a, Vector b, Vector c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
INLINE Vector within(Vector a, Vector bound) { return _mm512_range_ps(a, bound, 2); }  // smaller size, sign of a
INLINE Vector reciprocal_estimate(Vector a) { return _mm512_rcp14_ps(a); }
INLINE Vector root_of(Vector v, Vector eps) {  // sqrt(v) + eps; sqrt(v) = v / sqrt(v)
  const Vector y = _mm512_rsqrt14_ps(larger(v, all(1.2e-38))), s = mul(v, y);
  const __m512i halved = _mm512_sub_epi32(_mm512_castps_si512(y), _mm512_set1_epi32(1 << 23));
  return mul_add(s, sub_from(s, _mm512_castsi512_ps(halved), all(0.5)), add(s, eps));
}
constexpr double unit_of_root = 1;
INLINE Vector root_of_odds(Vector c) { return _mm512_sqrt_ps(ratio(c, sub(all(1), c))); }  // sqrt(c / (1 - c))

// A function of five bits, the last ones of `place`.
struct Table {
  Vector low, high;

  explicit Table(const float* values) : low(load(values)), high(load(values + lanes)) {}
  Vector at(__m512i place) const { return _mm512_permutex2var_ps(low, place, high); }
};

// momentum T^k for the effective times T >= 1, from tables: 2^(k e) for the exponent e of T, and for the mantissa the
// coefficients of a parabola for each of 32 intervals of [1, 2).
struct Power {
  Table whole, constant, linear, square;

  INLINE Vector operator()(Vector time) const {
    const __m512i bits = _mm512_castps_si512(time), e = _mm512_srli_epi32(bits, 23);
    const __m512i piece = _mm512_srli_epi32(bits, 18);  // its last five bits: the 32nd of the mantissa
    const __m512i mantissa = _mm512_set1_epi32(0x007FFFFF), exponent_of_1 = _mm512_set1_epi32(0x3F800000);
    const Vector f = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(bits, mantissa, exponent_of_1, 0xEA));
    return mul(mul_add(f, mul_add(f, square.at(piece), linear.at(piece)), constant.at(piece)), whole.at(e));
  }
};

inline Power power_of(double k, double momentum) {
  float whole[32], constant[32], linear[32], square[32];
  for (int i = 0; i < 32; ++i) {
    whole[(127 + i) & 31] = float(std::exp2(k * i) * momentum);  // looked up by the exponent's bits: 127 + e
    // (c + x)^k by its series around the middle c of a piece, with the cubic term spread over the linear one so that
    // the error is least.
    const double c = 1 + (i + 0.5) / 32, half_width = 1.0 / 64 / c, value = std::pow(c, k);
    const double cubic = k * (k - 1) * (k - 2) / 6, slope = (k + 0.75 * half_width * half_width * cubic) * value / c;
    square[i] = float(k * (k - 1) / 2 * value / (c * c));
    linear[i] = float(slope - 2 * c * square[i]);
    constant[i] = float(value - c * (linear[i] + c * square[i]));  // compensates for the rounding of the others
  }
  return {Table(whole), Table(constant), Table(linear), Table(square)};
}

#else

constexpr int lanes = 8;
constexpr double least_exponent = -0.5;

using Vector = __m256;
constexpr int64_t block = 64;

inline Vector all(double x) { return _mm256_set1_ps(float(x)); }
INLINE Vector load(const float* from) { return _mm256_loadu_ps(from); }
INLINE void store(float* to, Vector a) { _mm256_storeu_ps(to, a); }
INLINE Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
INLINE Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
INLINE Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
INLINE Vector ratio(Vector a, Vector b) { return _mm256_div_ps(a, b); }
INLINE Vector size_of(Vector a) { return _mm256_andnot_ps(all(-0.0), a); }
INLINE Vector flip(Vector a, Vector signs) { return _mm256_xor_ps(a, signs); }
INLINE Vector mul_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }    // a b + c
INLINE Vector mul_sub(Vector a, Vector b, Vector c) { return _mm256_fmsub_ps(a, b, c); }    // a b - c
INLINE Vector sub_from(Vector a, Vector b, Vector c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
// Of numbers that are not negative: their bits, as integers, have the same order.
INLINE Vector larger(Vector a, Vector b) { return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b))); }
INLINE Vector smaller(Vector a, Vector b) { return _mm256_castsi256_ps(_mm256_min_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b))); }
INLINE Vector within(Vector a, Vector bound) {  // smaller size, sign of a
  return _mm256_or_ps(smaller(size_of(a), bound), _mm256_and_ps(a, all(-0.0)));
}
INLINE Vector root_of(Vector v, Vector eps) { return add(_mm256_sqrt_ps(v), eps); }  // sqrt(v) + eps
constexpr double unit_of_root = 0.5;
INLINE Vector root_of_odds(Vector c) {  // 2 sqrt(c / (1 - c)) = 2 c / sqrt(c (1 - c))
  const Vector square = sub_from(c, c, c), y = _mm256_rsqrt_ps(square);
  return mul(mul(c, y), sub_from(mul(square, y), y, all(3)));
}

// A function of two bits, the last ones of `place`.
struct Table {
  Vector values;

  explicit Table(const float* four) : values(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(four))) {}
  INLINE Vector at(__m256i place) const { return _mm256_permutevar_ps(values, place); }
};

// momentum T^k for the effective times T >= 1, from tables: 2^(k e) for the exponent e of T, in two parts, and for the
// mantissa the coefficients of a polynomial of degree 4 for each quarter of [1, 2).
struct Power {
  Table low, terms[5];
  Vector high;

  INLINE Vector operator()(Vector time) const {
    const __m256i bits = _mm256_castps_si256(time), piece = _mm256_srli_epi32(bits, 21), e = _mm256_srli_epi32(bits, 23);
    const __m256i mantissa = _mm256_and_si256(bits, _mm256_set1_epi32(0x007FFFFF));
    const Vector f = _mm256_castsi256_ps(_mm256_or_si256(mantissa, _mm256_set1_epi32(0x3F800000)));
    const Vector scale = mul(low.at(e), _mm256_permutevar8x32_ps(high, _mm256_srli_epi32(bits, 25)));
    Vector sum = mul_add(terms[4].at(piece), f, terms[3].at(piece));
    for (int i = 2; i >= 0; --i) sum = mul_add(sum, f, terms[i].at(piece));
    return mul(sum, scale);
  }
};

inline Power power_of(double k, double momentum) {
  float low[4], high[8], terms[5][4];
  for (int i = 0; i < 4; ++i) low[i] = float(std::exp2(k * (i - 3)));  // looked up by 127 + e, the exponent's bits
  for (int i = 0; i < 8; ++i) high[(i + 31) & 7] = float(std::exp2(k * 4 * i) * momentum);
  for (int i = 0; i < 4; ++i) {
    // (c + x)^k = c^k sum of a_n (x / c)^n around the middle c of a quarter, with the term of x^5 spread over x^3 and x so
    // that the error is least.
    const double c = 1 + (i + 0.5) / 4, h2 = 1.0 / 64 / (c * c);
    double a[6] = {1};
    for (int n = 1; n < 6; ++n) a[n] = a[n - 1] * (k - n + 1) / n;
    a[3] += 1.25 * h2 * a[5];
    a[1] -= 0.3125 * h2 * h2 * a[5];
    for (int n = 0; n < 5; ++n) a[n] *= std::pow(c, k - n);
    for (int n = 4; n >= 0; --n) {  // in powers of f = c + x: each term compensates for the rounding of those above it
      terms[n][i] = float(a[n]);
      double part = terms[n][i];  // of x^q in its f^n
      for (int q = n - 1; q >= 0; --q) a[q] -= part *= c * (q + 1) / (n - q);
    }
  }
  return {Table(low), {Table(terms[0]), Table(terms[1]), Table(terms[2]), Table(terms[3]), Table(terms[4])}, load(high)};
}

#endif

// What does not depend on the element.
struct Constants {
  Power power;
  Vector rate, keep, eps, sign, gain, t, offset, clip, c_min;

  explicit Constants(const Scalars& a)
      : power(power_of(1 - a.kappa, a.gamma3)), rate(all(unit_of_root * a.lr * a.decay_factor)), keep(all(a.decay_factor)),
        eps(all(a.eps)), sign(all(a.sign < 0 ? -0.0 : 0.0)), gain(all(a.gain)), t(all(a.t)),
        offset(all(a.gamma3 * a.alpha_offset)), clip(all(unit_of_root * a.gamma3 * a.clipsnr)),
        c_min(all(1 / (2 + a.t))) {}
};

INLINE Vector damping_of(const Constants& k, Vector tau) { return k.power(larger(mul(tau, k.t), all(1))); }

INLINE Vector root_q_of(const Constants& k, Vector tau) {  // in units of unit_of_root
  return root_of_odds(larger(smaller(tau, all(0.5)), k.c_min));
}

INLINE Vector moved(Vector average, Vector to, Vector gain) { return mul_add(sub(to, average), gain, average); }

INLINE Vector new_square(const Constants& k, Vector g, Vector v) { return mul_add(mul_sub(g, g, v), k.gain, v); }

// The parameters of a vector, from its new moments; inverse: 1/r.
template <bool CLIP>
INLINE Vector stepped(const Constants& k, Vector x, Vector g, Vector m, Vector inverse, Vector damping, Vector root_q) {
  Vector direction, rate;
  if (CLIP) {  // NaN does not pass `within`, but g or m is NaN then, too
    const Vector damped = within(mul(damping, mul(m, inverse)), mul(root_q, k.clip));
    direction = mul_add(mul_add(m, k.offset, g), inverse, damped);
    rate = mul(root_q, k.rate);
  } else {
    direction = mul_add(add(damping, k.offset), m, g);
    rate = mul(mul(root_q, inverse), k.rate);
  }
  return sub_from(rate, direction, mul(x, k.keep));
}

#ifdef __AVX512F__

// A step of n elements, whole vectors and at most a block.
template <bool CLIP>
void advance(const Constants& k, float* __restrict p, const float* __restrict grad, float* __restrict m, float* __restrict v,
             float* __restrict tau, int64_t n) {
  alignas(64) float reciprocals[block];
  for (int64_t j = 0; j < n; j += lanes) {
    const Vector g = flip(load(grad + j), k.sign), size = size_of(g), v_new = new_square(k, g, load(v + j));
    store(m + j, moved(load(m + j), g, k.gain));
    store(v + j, v_new);
    const Vector r = root_of(v_new, k.eps), z = reciprocal_estimate(r);
    store(tau + j, moved(load(tau + j), ratio(size, add(size, r)), k.gain));
    store(reciprocals + j, mul(z, sub_from(r, z, all(2))));
  }
  for (int64_t j = 0; j < n; j += lanes) {
    const Vector tau_new = load(tau + j), g = flip(load(grad + j), k.sign), inverse = load(reciprocals + j);
    const Vector damping = damping_of(k, tau_new), root_q = root_q_of(k, tau_new);
    store(p + j, stepped<CLIP>(k, load(p + j), g, load(m + j), inverse, damping, root_q));
  }
}

#else

// A step of n elements, whole vectors and at most a block.
template <bool CLIP>
void advance(const Constants& k, float* __restrict p, const float* __restrict grad, float* __restrict m, float* __restrict v,
             float* __restrict tau, int64_t n) {
  alignas(64) float roots[block], damping[block];
  for (int64_t j = 0; j < n; j += lanes) {
    const Vector g = flip(load(grad + j), k.sign), v_new = new_square(k, g, load(v + j));
    store(m + j, moved(load(m + j), g, k.gain));
    store(v + j, v_new);
    store(roots + j, root_of(v_new, k.eps));
  }
  for (int64_t j = 0; j < n; j += lanes) {
    const Vector size = size_of(load(grad + j));
    store(tau + j, moved(load(tau + j), ratio(size, add(size, load(roots + j))), k.gain));
  }
  for (int64_t j = 0; j < n; j += lanes) store(damping + j, damping_of(k, load(tau + j)));
  for (int64_t j = 0; j < n; j += lanes) {
    const Vector g = flip(load(grad + j), k.sign), inverse = ratio(all(1), load(roots + j)), root_q = root_q_of(k, load(tau + j));
    store(p + j, stepped<CLIP>(k, load(p + j), g, load(m + j), inverse, load(damping + j), root_q));
  }
}

#endif

template <bool CLIP>
void run_blocks(const Constants& k, float* __restrict p, const float* __restrict grad, float* __restrict m, float* __restrict v,
                float* __restrict tau, int64_t begin, int64_t end) {
  const int64_t whole = begin + (end - begin) / lanes * lanes;
  for (int64_t i = begin; i < whole; i += block) {
    advance<CLIP>(k, p + i, grad + i, m + i, v + i, tau + i, whole - i < block ? whole - i : block);
  }
  if (whole == end) return;
  // The rest, in copies that are a whole vector: the same operations, so the same bits.
  alignas(64) float copy[5][lanes] = {};
  float* const all_of[5] = {p + whole, const_cast<float*>(grad) + whole, m + whole, v + whole, tau + whole};
  for (int x = 0; x < 5; ++x) std::memcpy(copy[x], all_of[x], size_t(end - whole) * sizeof(float));
  advance<CLIP>(k, copy[0], copy[1], copy[2], copy[3], copy[4], lanes);
  for (int x = 0; x < 5; ++x) {
    if (x != 1) std::memcpy(all_of[x], copy[x], size_t(end - whole) * sizeof(float));
  }
}

#undef INLINE

}  // namespace star

#endif

enum RuleName { ADANA, DANA_STAR, ADAMW, ADEMAMIX };

template <class P, class M, class S>
void run_rule(RuleName rule, const Scalars& a, const Item& x, int64_t begin, int64_t end) {
  P *p = static_cast<P*>(x.p), *g = static_cast<P*>(x.g);
  M *m = static_cast<M*>(x.m), *v = static_cast<M*>(x.v), *third = static_cast<M*>(x.third);
  const bool clips = a.clipsnr >= 0;
  if (rule == ADANA && !clips) run<Adana<S>, false, S>(a, p, g, m, v, third, begin, end);
  if (rule == ADANA && clips) run<ClippedAdana<S>, false, S>(a, p, g, m, v, third, begin, end);
#ifdef HAS_STAR
  if constexpr (std::is_same_v<P, float> && std::is_same_v<M, float>) {
    if (rule == DANA_STAR) {
      const star::Constants constants(a);
      return clips ? star::run_blocks<true>(constants, p, g, m, v, third, begin, end)
                   : star::run_blocks<false>(constants, p, g, m, v, third, begin, end);
    }
  }
#endif
  if (rule == DANA_STAR && !clips) run_star<false, S>(a, p, g, m, v, third, begin, end);
  if (rule == DANA_STAR && clips) run_star<true, S>(a, p, g, m, v, third, begin, end);
  if (rule == ADAMW) run<Adamw<S>, false, S>(a, p, g, m, v, third, begin, end);
  if (rule == ADEMAMIX) run<Ademamix<S>, true, S>(a, p, g, m, v, third, begin, end);
}

void run_item(RuleName rule, const Scalars* scalars, const Item& x, int64_t begin, int64_t end) {
  const Scalars& a = scalars[x.scalars];
  if (x.format == FLOAT) run_rule<float, float, float>(rule, a, x, begin, end);
  if (x.format == DOUBLE) run_rule<double, double, double>(rule, a, x, begin, end);
  if (x.format == BFLOAT16) run_rule<bfloat16, float, float>(rule, a, x, begin, end);
  if (x.format == FLOAT_WITH_BFLOAT16) run_rule<float, bfloat16, float>(rule, a, x, begin, end);
  if (x.format == ALL_BFLOAT16) run_rule<bfloat16, bfloat16, float>(rule, a, x, begin, end);
}

// work(me, all) by at most `threads` threads at the same time: OpenMP's, which torch shares, where it is there.
template <class Work>
void in_parallel(int threads, const Work& work) {
  if (threads < 2) return work(0, 1);
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  work(omp_get_thread_num(), omp_get_num_threads());
#else
  std::vector<std::thread> others;
  for (int me = 1; me < threads; me++) others.emplace_back(std::cref(work), me, threads);
  work(0, threads);
  for (std::thread& each : others) each.join();
#endif
}

}  // namespace

extern "C" {

// Begins a step: advances the step counts, and writes them to `counts`.
void advance(const Item* items, int64_t count, int64_t* counts) {
  for (int64_t k = 0; k < count; ++k) counts[k] = ++*items[k].step;
}

// One step of all parameters by a rule.
void step(int rule, const Item* items, int64_t count, const Scalars* scalars, int threads) {
  int64_t total = 0;
  for (int64_t k = 0; k < count; ++k) total += items[k].numel;
  const int64_t useful = total / (1 << 14) + 1;
  in_parallel(threads < useful ? threads : int(useful), [&](int me, int all) {
    constexpr int64_t line = 64;  // cuts fall on whole vectors
    const int64_t from = total / all * me / line * line;
    const int64_t until = me + 1 == all ? total : total / all * (me + 1) / line * line;
    int64_t start = 0;
    for (int64_t k = 0; k < count && start < until; start += items[k].numel, ++k) {
      const int64_t numel = items[k].numel;
      if (start + numel <= from) continue;
      const int64_t begin = from > start ? from - start : 0, end = until - start < numel ? until - start : numel;
      run_item(RuleName(rule), scalars, items[k], begin, end);
    }
  });
}
}
