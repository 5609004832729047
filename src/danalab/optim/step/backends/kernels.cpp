// One pass over memory for all parameters of an optimizer: reads p, g and the moments, writes p and the moments.
//
// The update rules are those of danalab/optim/rules, arranged for few divisions and short chains of dependencies.
// All parameters form one line of elements that is cut evenly among the threads, so that many small tensors cost no more
// than a large one. Built once per machine and loaded through ctypes: plain C interface, no Python or torch headers.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "threads.h"

#if (defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__))
#define HAS_STAR
#include <immintrin.h>
#endif

namespace {

// Order of the scalars of a batch; native.py fills them in.
struct Scalars {
  double lr, decay_factor, eps, sign;  // sign: -1 to maximize
  double gain1, gain2, gain3;          // weights of the new gradient in m, in v, in the third moment
  double momentum, offset, clip;       // see the rules below; clip < 0: none
  double t, exponent;                  // dana_star: t, 1 - kappa; auto_dana: log2(1 + t), kappa_max - kappa_min
  double root_scale;                   // adamw, ademamix: 1 / sqrt(1 - beta2^t)
  double floor;                        // auto_dana: square of |m| / r below which m is taken for noise
  double cautious;                     // bool: decay only coordinates that the step moves towards zero
  double count;                        // the step count, which seeds stochastic rounding
};

struct Tensors {
  void* const* p;
  const void* const* g;
  void* const* m;
  void* const* v;
  void* const* third;                  // tau, or the slow average; null pointers where a rule has fewer moments
  void* const* m_rest;                 // of formats with fewer bytes: further bits or scales of the moments,
  void* const* v_rest;
  void* const* third_rest;
  void* const* p_rest;                 // further bits of a bfloat16 parameter
  const int64_t* numel;
  const int64_t* columns;              // length of the rows
  const int32_t* dtype;                // 0 float32, 1 float64, 2 bfloat16
  const int32_t* format;               // of the moments, see kernels_formats.h
  const int32_t* batch;                // index into the scalars
  const uint32_t* index;               // of the parameter, which seeds stochastic rounding
  const int32_t* stochastic;           // bool, for each batch
  const Scalars* scalars;
};

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

inline uint32_t hash32(uint32_t x) {  // as in noise.py
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}

inline float load(float x) { return x; }
inline double load(double x) { return x; }
inline float load(bfloat16 x) { return float_of(uint32_t(x.bits) << 16); }

template <bool STOCHASTIC>
inline void store(float& to, float x, uint32_t, int64_t) {
  to = x;
}
template <bool STOCHASTIC>
inline void store(double& to, double x, uint32_t, int64_t) {
  to = x;
}
template <bool STOCHASTIC>
inline void store(bfloat16& to, float x, uint32_t seed, int64_t i) {
  const uint32_t u = bits_of(x);
  const uint32_t finite = (u & 0x7F800000u) != 0x7F800000u;
  const uint32_t noise = STOCHASTIC ? hash32(uint32_t(i) * 0x9E3779B1u + seed) >> 16  // up with the right probability
                                    : 0x7FFFu + ((u >> 16) & 1u);                     // nearest, ties to even
  const uint32_t special = u | ((u & 0x007FFFFFu) ? 0x00400000u : 0u);                // NaN stays NaN when cut
  to.bits = uint16_t((finite ? u + noise : special) >> 16);
}

// 2^e and x^k for 1 <= x < 2^24 and -5 <= k <= 1. The float versions are polynomials and bit arithmetic, 5e-7 accurate,
// because they have to vectorise: powf would cost more than all the rest.
inline double exp2_of(double e) { return std::exp2(e); }
inline float exp2_of(float e) {
  const float shifted = e + 12582912.0f;  // 1.5 * 2^23: the sum's last bits are e, rounded
  const float r = e - (shifted - 12582912.0f);
  float exp2 = 0.001321867f;  // (2^r - 1) / r
  exp2 = exp2 * r + 0.009671698f;
  exp2 = exp2 * r + 0.055508930f;
  exp2 = exp2 * r + 0.240222380f;
  exp2 = exp2 * r + 0.693146884f;
  return float_of(bits_of(exp2 * r + 1.0f) + (bits_of(shifted) << 23));
}

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
  return exp2_of(k * (log2 * f + float(exponent)));
}

constexpr int64_t block = 64;  // elements: five arrays of them are a small part of the first-level cache

// Requests what a later block of these arrays reads. A processor's own prefetching ends at each page, and the loads that
// it makes out of order reach no further than the arithmetic that waits. Null pointers: arrays that a rule does not have.
// GCC takes calls of a function that only requests for calls without effect, and drops them: hence always_inline.
template <class... Elements>
__attribute__((always_inline)) inline void prefetch(int64_t from, const Elements*... arrays) {
  constexpr uintptr_t ahead = 2048;  // bytes
  const auto request = [](const void* array, uintptr_t at) __attribute__((always_inline)) {
    if (array) __builtin_prefetch(reinterpret_cast<const void*>(uintptr_t(array) + at + ahead));
  };
  for (int64_t i = from; i < from + block; i += 16) {  // 16: a line of floats
    (request(arrays, uintptr_t(i) * sizeof *arrays), ...);
  }
}

template <class S>
inline S clamp(S x, S bound) {  // NaN passes
  x = x < -bound ? -bound : x;
  return x > bound ? bound : x;
}

template <class S>
inline S minus_product(S x, S a, S b) {
#ifdef FP_FAST_FMAF  // explicitly: a compiler that is free to contract chooses otherwise in the rest of a loop
  return std::fma(-a, b, x);
#else
  return x - a * b;
#endif
}

// Weight decay and step: p <- after (before p - lr step). Where `cautious` only coordinates decay that it moves to zero.
template <class S>
struct Decay {
  S before, elsewhere, after;

  // Args: first: decays before the step; cautious decay always does.
  Decay(const Scalars& a, bool first)
      : before(S(first || a.cautious ? a.decay_factor : 1)), elsewhere(S(first && !a.cautious ? a.decay_factor : 1)),
        after(S(first || a.cautious ? 1 : a.decay_factor)) {}

  S operator()(S x, S lr, S step) const {
    const bool towards = step > 0 ? x > 0 : step < 0 && x < 0;
    return after * minus_product((towards ? before : elsewhere) * x, lr, step);
  }
};

template <class S>
inline S sign_of(S x) {  // of 0: 0; NaN passes
  return x > 0 ? S(1) : x < 0 ? S(-1) : x;
}

enum Rule { ADANA, DANA_STAR, ADAMW_DECAYING_WD, ADEMAMIX, DANA, SIGN_DANA, AUTO_DANA };

// Elements [begin, end) of one parameter for the rules without tau. S: dtype of state and arithmetic.
template <Rule RULE, bool CLIP, bool STOCHASTIC, class P, class S>
void run(P* __restrict p, const P* __restrict grad, S* __restrict m, S* __restrict v, S* __restrict slow, int64_t begin,
         int64_t end, uint32_t seed, const Scalars& a) {
  const S lr = S(a.lr), eps = S(a.eps), sign = S(a.sign);
  const S gain1 = S(a.gain1), gain2 = S(a.gain2);
  const S momentum = S(a.momentum), offset = S(a.offset), clip = S(a.clip), root_scale = S(a.root_scale);
  const S gain3 = S(a.gain3), t = S(a.t), exponent = S(a.exponent), floor = S(a.floor);
  const Decay<S> decayed(a, RULE == ADEMAMIX);
  for (int64_t from = begin, until; from < end; from = until) {
    until = end - from < block ? end : from + block;
    prefetch(from, p, grad, m, v, slow);
#pragma omp simd
    for (int64_t i = from; i < until; ++i) {
      const S g = sign * load(grad[i]);
      const S mi = m[i] + gain1 * (g - m[i]);
      m[i] = mi;
      S vi = 0;
      if (RULE != DANA && RULE != SIGN_DANA) {
        vi = v[i] + gain2 * (g * g - v[i]);
        v[i] = vi;
      }
      S step;
      if (RULE == DANA) {  // momentum: gamma3 (alpha + alpha_offset), here and in the next
        step = g + momentum * mi;
      } else if (RULE == SIGN_DANA) {
        step = sign_of(g) + momentum * sign_of(mi);
      } else if (RULE == ADEMAMIX) {  // momentum: 1 / (1 - beta1^t); offset: gamma3 alpha
        const S si = slow[i] + gain3 * (g - slow[i]);
        slow[i] = si;
        step = (momentum * mi + offset * si) / (std::sqrt(vi) * root_scale + eps);
      } else if (RULE == AUTO_DANA) {  // momentum: gamma3 (1 + t)^(1 - kappa_max); offset: times gamma3
        const S r = std::sqrt(vi) + eps, u = mi / r;
        S signal = 1 - floor / (u * u);
        signal = signal > 0 ? signal : S(0);
        step = g / r + (momentum * exp2_of(t * (exponent * signal)) + offset) * u;
      } else if (RULE == ADAMW_DECAYING_WD) {
        step = momentum * mi / (std::sqrt(vi) * root_scale + eps);  // momentum: 1 / (1 - beta1^t)
      } else if (CLIP) {                                            // momentum: gamma3 alpha; offset, clip: times gamma3
        const S r = std::sqrt(vi) + eps;
        step = (g + (clamp(momentum * mi, clip * r) + offset * mi)) / r;
      } else {  // momentum: gamma3 (alpha + alpha_offset)
        step = (g + momentum * mi) / (std::sqrt(vi) + eps);
      }
      store<STOCHASTIC>(p[i], decayed(load(p[i]), lr, step), seed, i);
    }
  }
}

#ifdef HAS_STAR
#include "kernels_star.h"
#endif

// The same for the rules with tau, in three short loops over blocks that stay in the first-level cache. As one loop, the
// chain of dependent operations from g to p is longer than a processor looks ahead, and it waits (a third slower).
template <bool CLIP, bool STOCHASTIC, class P, class S>
void run_star(P* __restrict p, const P* __restrict grad, S* __restrict m, S* __restrict v, S* __restrict tau,
              int64_t begin, int64_t end, uint32_t seed, const Scalars& a) {
  alignas(64) S roots[block], damping[block];
  const S lr = S(a.lr), eps = S(a.eps), sign = S(a.sign), t = S(a.t);
  const Decay<S> decayed(a, false);
  const S gain1 = S(a.gain1), gain2 = S(a.gain2), gain3 = S(a.gain3);
  const S momentum = S(a.momentum), offset = S(a.offset), clip = S(a.clip), exponent = S(a.exponent);
  const S c_min = S(1 / (2 + a.t));  // q >= 1 / (1 + t)
  for (int64_t from = begin; from < end; from += block) {
    const int64_t n = end - from < block ? end - from : block;
    prefetch(from, p, grad, m, v, tau);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const int64_t i = from + j;
      const S g = sign * load(grad[i]), size = std::fabs(g);
      const S vi = v[i] + gain2 * (g * g - v[i]);
      m[i] += gain1 * (g - m[i]);
      v[i] = vi;
      const S r = std::sqrt(vi) + eps;
      roots[j] = r;
      tau[i] += gain3 * (size / (size + r) - tau[i]);
    }
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const S time = tau[from + j] * t;
      damping[j] = momentum * power(time < 1 ? S(1) : time, exponent);  // momentum, offset, clip: times gamma3
    }
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const int64_t i = from + j;
      const S r = roots[j];
      S c = tau[i] < S(0.5) ? tau[i] : S(0.5);
      c = c < c_min ? c_min : c;
      const S scale = std::sqrt(c / ((1 - c) * (r * r)));  // sqrt(q) / r
      S step = sign * load(grad[i]);
      if (CLIP) {
        step += clamp(damping[j] * m[i], clip * scale * (r * r)) + offset * m[i];
      } else {
        step += (damping[j] + offset) * m[i];
      }
      store<STOCHASTIC>(p[i], decayed(load(p[i]), lr, step * scale), seed, i);
    }
  }
}

#include "kernels_formats.h"

// The update of a rule, on parameters of any dtype.
template <Rule RULE, bool CLIP, bool STOCHASTIC>
struct Update {
  const Scalars& a;
  uint32_t seed;
#ifdef HAS_STAR
  std::optional<star::Constants> constants;
#endif

  // Args: for_float32: whether parameters are float32, as they are handed over.
  Update(const Scalars& a, uint32_t seed, [[maybe_unused]] bool for_float32) : a(a), seed(seed) {
#ifdef HAS_STAR
    if (RULE == DANA_STAR && for_float32 && a.exponent >= star::least_exponent) constants.emplace(a);
#endif
  }

  template <class P, class S>
  void operator()(P* p, const P* g, S* m, S* v, S* third, int64_t begin, int64_t end) const {
    if constexpr (RULE == DANA_STAR) {
#ifdef HAS_STAR
      if constexpr (std::is_same_v<P, float>) {
        if (constants) return star::run_star<CLIP>(*constants, p, g, m, v, third, begin, end);
      }
#endif
      run_star<CLIP, STOCHASTIC>(p, g, m, v, third, begin, end, seed, a);
    } else {
      run<RULE, CLIP, STOCHASTIC>(p, g, m, v, third, begin, end, seed, a);
    }
  }
};

template <Rule RULE, bool CLIP, bool STOCHASTIC, class P, class S>
void run_plain(const Tensors& x, int64_t k, int64_t begin, int64_t end, uint32_t seed) {
  const Update<RULE, CLIP, STOCHASTIC> update(x.scalars[x.batch[k]], seed, std::is_same_v<P, float>);
  update(static_cast<P*>(x.p[k]), static_cast<const P*>(x.g[k]), static_cast<S*>(x.m[k]), static_cast<S*>(x.v[k]),
         static_cast<S*>(x.third[k]), begin, end);
}

template <Rule RULE, bool CLIP>
void run_formats(const Tensors& x, int64_t k, int64_t begin, int64_t end, uint32_t seed) {
  using Rounded = Update<RULE, CLIP, false>;
  const Rounded update(x.scalars[x.batch[k]], seed, true);
  const auto step = [](const void* rule, float* p, const float* g, float* m, float* v, float* third, int64_t n) {
    (*static_cast<const Rounded*>(rule))(p, g, m, v, third, 0, n);
  };
  formats::run(x, k, begin, end, hash32(seed), step, &update);
}

template <Rule RULE, bool CLIP>
void run_item(const Tensors& x, int64_t k, int64_t begin, int64_t end) {
  const int32_t batch = x.batch[k], dtype = x.dtype[k];
  const uint32_t seed = hash32(hash32(uint32_t(int64_t(x.scalars[batch].count))) + x.index[k] * 0x9E3779B1u);
  if (x.format[k] != formats::FLOAT32) return run_formats<RULE, CLIP>(x, k, begin, end, seed);
  if (dtype == 0) run_plain<RULE, CLIP, false, float, float>(x, k, begin, end, seed);
  if (dtype == 1) run_plain<RULE, CLIP, false, double, double>(x, k, begin, end, seed);
  if (dtype == 2 && x.stochastic[batch]) run_plain<RULE, CLIP, true, bfloat16, float>(x, k, begin, end, seed);
  if (dtype == 2 && !x.stochastic[batch]) run_plain<RULE, CLIP, false, bfloat16, float>(x, k, begin, end, seed);
}

template <Rule RULE>
void run_all(const Tensors& x, int64_t count, int threads) {
  int64_t total = 0;
  for (int64_t k = 0; k < count; ++k) total += x.numel[k];
  constexpr int64_t line = 64;  // cuts fall on whole vectors
  const int64_t smallest = 1 << 14;
  const int64_t useful = total / smallest + 1;
  if (threads > useful) threads = int(useful);
  in_parallel(threads, [&](int me, int all) {
    const int64_t from = total / all * me / line * line;
    const int64_t until = me + 1 == all ? total : total / all * (me + 1) / line * line;
    int64_t start = 0;
    for (int64_t k = 0; k < count && start < until; start += x.numel[k], ++k) {
      if (start + x.numel[k] <= from) continue;
      const int64_t begin = from > start ? from - start : 0;
      const int64_t end = until - start < x.numel[k] ? until - start : x.numel[k];
      constexpr bool clips = RULE == ADANA || RULE == DANA_STAR;
      if (clips && x.scalars[x.batch[k]].clip >= 0) {
        run_item<RULE, clips>(x, k, begin, end);
      } else {
        run_item<RULE, false>(x, k, begin, end);
      }
    }
  });
}

}  // namespace

extern "C" {
// Advance the step counts of all parameters. t: that of each batch, -1 at first. Returns 0, with nothing changed, where
// parameters of a batch differ.
int advance(int64_t* const* steps, const int32_t* batch, int64_t count, int64_t* t) {
  for (int64_t k = 0; k < count; ++k) {
    int64_t& common = t[batch[k]];
    if (common < 0) common = *steps[k] + 1;
    if (common != *steps[k] + 1) return 0;
  }
  for (int64_t k = 0; k < count; ++k) ++*steps[k];
  return 1;
}
void adana(const Tensors* x, int64_t count, int threads) { run_all<ADANA>(*x, count, threads); }
void dana_star(const Tensors* x, int64_t count, int threads) { run_all<DANA_STAR>(*x, count, threads); }
void adamw_decaying_wd(const Tensors* x, int64_t count, int threads) { run_all<ADAMW_DECAYING_WD>(*x, count, threads); }
void ademamix(const Tensors* x, int64_t count, int threads) { run_all<ADEMAMIX>(*x, count, threads); }
void dana(const Tensors* x, int64_t count, int threads) { run_all<DANA>(*x, count, threads); }
void sign_dana(const Tensors* x, int64_t count, int threads) { run_all<SIGN_DANA>(*x, count, threads); }
void auto_dana(const Tensors* x, int64_t count, int threads) { run_all<AUTO_DANA>(*x, count, threads); }
}
