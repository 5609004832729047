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

enum RuleName { ADANA, DANA_STAR, ADAMW, ADEMAMIX };

template <class P, class M, class S>
void run_rule(RuleName rule, const Scalars& a, const Item& x, int64_t begin, int64_t end) {
  P *p = static_cast<P*>(x.p), *g = static_cast<P*>(x.g);
  M *m = static_cast<M*>(x.m), *v = static_cast<M*>(x.v), *third = static_cast<M*>(x.third);
  const bool clips = a.clipsnr >= 0;
  if (rule == ADANA && !clips) run<Adana<S>, false, S>(a, p, g, m, v, third, begin, end);
  if (rule == ADANA && clips) run<ClippedAdana<S>, false, S>(a, p, g, m, v, third, begin, end);
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
