// dana_star on float32 for processors with AVX-512: whole vectors of 16, two at a time, no division and no square root.
//
// Reciprocals (of the root too) are the processor's 14-bit estimates and one Newton step, good to an ulp. The power
// T^(1-kappa) is read off tables: 2^((1-kappa) e) for the exponent e of T, c^(1-kappa) for the middle c of the 32nd of
// its mantissa f, and a polynomial of degree 2 for (f/c)^(1-kappa), whose argument is within 1/64 of 1.
//
// Two vectors go side by side, and the step is made in two stages over a block that stays in the first-level cache:
// the chain of dependent operations from g to p is longer than a processor looks ahead.

// Included by kernels.cpp, whose Scalars it takes.

namespace avx512 {

constexpr int lanes = 16, pair = 2, block = 256;

// Vectors that go side by side.
template <int N>
struct Vectors {
  __m512 x[N];
};

#define EACH _Pragma("GCC unroll 4") for (int u = 0; u < N; ++u)
#define INLINE __attribute__((always_inline)) inline

template <int N>
INLINE Vectors<N> load(const float* from) {
  Vectors<N> r;
  EACH r.x[u] = _mm512_loadu_ps(from + lanes * u);
  return r;
}
template <int N>
INLINE void store(float* to, Vectors<N> a) {
  EACH _mm512_storeu_ps(to + lanes * u, a.x[u]);
}

// An operation on vectors, or on vectors and a constant.
#define BINARY(name, operation)                       \
  template <int N>                                    \
  INLINE Vectors<N> name(Vectors<N> a, Vectors<N> b) { \
    Vectors<N> r;                                     \
    EACH r.x[u] = operation(a.x[u], b.x[u]);          \
    return r;                                         \
  }                                                   \
  template <int N>                                    \
  INLINE Vectors<N> name(Vectors<N> a, __m512 b) {    \
    Vectors<N> r;                                     \
    EACH r.x[u] = operation(a.x[u], b);               \
    return r;                                         \
  }
BINARY(mul, _mm512_mul_ps)
BINARY(add, _mm512_add_ps)
BINARY(sub, _mm512_sub_ps)
BINARY(larger, _mm512_max_ps)
BINARY(smaller, _mm512_min_ps)
BINARY(flip, _mm512_xor_ps)

INLINE __m512 of(__m512 a, int) { return a; }
template <int N>
INLINE __m512 of(const Vectors<N>& a, int u) {
  return a.x[u];
}

// a b + c, c - a b, a b - c; b and c may be constants.
#define TERNARY(name, operation)                                \
  template <int N, class B, class C>                            \
  INLINE Vectors<N> name(Vectors<N> a, B b, C c) {              \
    Vectors<N> r;                                               \
    EACH r.x[u] = operation(a.x[u], of(b, u), of(c, u));        \
    return r;                                                   \
  }
TERNARY(mul_add, _mm512_fmadd_ps)
TERNARY(sub_from, _mm512_fnmadd_ps)
TERNARY(mul_sub, _mm512_fmsub_ps)

#define UNARY(name, operation)           \
  template <int N>                       \
  INLINE Vectors<N> name(Vectors<N> a) { \
    Vectors<N> r;                        \
    EACH r.x[u] = operation(a.x[u]);     \
    return r;                            \
  }
UNARY(absolute, _mm512_abs_ps)
UNARY(near_reciprocal, _mm512_rcp14_ps)
UNARY(near_reciprocal_root, _mm512_rsqrt14_ps)

inline __m512 all(double x) { return _mm512_set1_ps(float(x)); }

// What does not depend on the element.
struct Constants {
  __m512 whole[2], middle[2], reciprocal[2], first, second;  // of the power
  __m512 lr, keep, eps, sign, gain, t, offset, clip, c_min;

  explicit Constants(const Scalars& a)
      : lr(all(a.lr)), keep(all(a.keep)), eps(all(a.eps)), sign(all(a.sign < 0 ? -0.0 : 0.0)), gain(all(a.gain1)),
        t(all(a.t)), offset(all(a.offset)), clip(all(a.clip)), c_min(all(1 / (2 + a.t))) {
    const double k = a.exponent, half_width = 1.0 / 64;
    alignas(64) float wholes[32], middles[32], reciprocals[32];
    for (int e = 0; e < 32; ++e) {
      wholes[(e + 127) & 31] = float(std::exp2(k * e) * a.momentum);  // looked up by the exponent's bits: 127 + e
      reciprocals[e] = float(1 / (1 + (e + 0.5) / 32));
      middles[e] = float(std::pow(double(reciprocals[e]), -k));
    }
    for (int half = 0; half < 2; ++half) {
      whole[half] = _mm512_load_ps(wholes + 16 * half);
      middle[half] = _mm512_load_ps(middles + 16 * half);
      reciprocal[half] = _mm512_load_ps(reciprocals + 16 * half);
    }
    // (1 + d)^k by its series, with the cubic term spread over the linear one so that the error is least.
    first = all(k + 0.75 * half_width * half_width * k * (k - 1) * (k - 2) / 6);
    second = all(k * (k - 1) / 2);
  }
};

// Moments of N vectors; r and 1/r are left for the second stage.
template <int N>
INLINE void moments(const Constants& k, const float* grad, float* m, float* v, float* tau, float* roots,
                    float* reciprocals) {
  const __m512 one = all(1), two = all(2), half = all(0.5), smallest = all(1.2e-38);
  const Vectors<N> g = flip(load<N>(grad), k.sign), size = absolute(g), m_old = load<N>(m), v_old = load<N>(v);
  const Vectors<N> v_new = mul_add(mul_sub(g, g, v_old), k.gain, v_old);
  store(m, mul_add(sub(g, m_old), k.gain, m_old));
  store(v, v_new);
  // sqrt(v) = v / sqrt(v)
  const Vectors<N> y = near_reciprocal_root(larger(v_new, smallest)), s = mul(v_new, y);
  const Vectors<N> r = add(mul_add(mul(s, half), sub_from(s, y, one), s), k.eps);
  // 1 / ((size + r) r) gives both 1 / (size + r) and 1 / r.
  const Vectors<N> sum = add(size, r), product = mul(sum, r), z = near_reciprocal(product);
  const Vectors<N> reciprocal = mul(z, sub_from(product, z, two));
  const Vectors<N> tau_old = load<N>(tau), share = mul(size, mul(reciprocal, r));
  store(tau, mul_add(sub(share, tau_old), k.gain, tau_old));
  store(roots, r);
  store(reciprocals, mul(reciprocal, sum));
}

// The step of N vectors from their new moments.
template <int N, bool CLIP>
INLINE void step(const Constants& k, float* p, const float* grad, const float* m, const float* tau, const float* roots,
                 const float* reciprocals) {
  const __m512 one = all(1), half = all(0.5);
  const __m512i mantissa = _mm512_set1_epi32(0x007FFFFF), exponent_of_1 = _mm512_set1_epi32(0x3F800000);
  const Vectors<N> tau_new = load<N>(tau), time = larger(mul(tau_new, k.t), one);
  Vectors<N> d, whole, middle;
  EACH {
    const __m512i bits = _mm512_castps_si512(time.x[u]), e = _mm512_srli_epi32(bits, 23);
    const __m512i place = _mm512_srli_epi32(bits, 18);  // its last five bits: the 32nd of the mantissa
    const __m512 f = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(bits, mantissa, exponent_of_1, 0xEA));
    d.x[u] = _mm512_fmsub_ps(f, _mm512_permutex2var_ps(k.reciprocal[0], place, k.reciprocal[1]), one);
    middle.x[u] = _mm512_permutex2var_ps(k.middle[0], place, k.middle[1]);
    whole.x[u] = _mm512_permutex2var_ps(k.whole[0], e, k.whole[1]);
  }
  // sqrt(q) = sqrt(c / (1 - c)) = c / sqrt(c (1 - c))
  const Vectors<N> c = larger(smaller(tau_new, half), k.c_min), x = sub_from(c, c, c), y = near_reciprocal_root(x);
  const Vectors<N> s = mul(c, y), error = sub_from(mul(x, y), y, one), root_q = mul_add(mul(s, half), error, s);
  const Vectors<N> power = mul_add(mul_add(d, k.second, k.first), d, one), damping = mul(power, mul(middle, whole));
  const Vectors<N> m_new = load<N>(m), g = flip(load<N>(grad), k.sign);
  Vectors<N> direction;
  if (CLIP) {
    const Vectors<N> bound = mul(mul(root_q, load<N>(roots)), k.clip), big = mul(damping, m_new);
    // Both return their second argument where one is NaN, which must pass.
    const Vectors<N> damped = smaller(bound, larger(flip(bound, all(-0.0)), big));
    direction = add(mul_add(m_new, k.offset, g), damped);
  } else {
    direction = mul_add(add(damping, k.offset), m_new, g);
  }
  const Vectors<N> scale = mul(mul(root_q, load<N>(reciprocals)), k.lr);
  store(p, mul(sub_from(scale, direction, load<N>(p)), k.keep));
}

// Elements [begin, end) of one parameter, as run_star in kernels.cpp.
template <bool CLIP>
void run_star(float* __restrict p, const float* __restrict grad, float* __restrict m, float* __restrict v,
              float* __restrict tau, int64_t begin, int64_t end, const Scalars& a) {
  const Constants k(a);
  alignas(64) float roots[block], reciprocals[block];
  int64_t i = begin;
  for (; i + block <= end; i += block) {
    for (int j = 0; j < block; j += pair * lanes) {
      moments<pair>(k, grad + i + j, m + i + j, v + i + j, tau + i + j, roots + j, reciprocals + j);
    }
    for (int j = 0; j < block; j += pair * lanes) {
      step<pair, CLIP>(k, p + i + j, grad + i + j, m + i + j, tau + i + j, roots + j, reciprocals + j);
    }
  }
  for (; i < end; i += lanes) {  // the rest, in copies that are whole vectors: the same operations, so the same bits
    const int64_t n = end - i < lanes ? end - i : lanes;
    alignas(64) float copy[5][lanes] = {};
    float* const all_of[5] = {p + i, const_cast<float*>(grad) + i, m + i, v + i, tau + i};
    for (int x = 0; x < 5; ++x) std::memcpy(copy[x], all_of[x], size_t(n) * sizeof(float));
    moments<1>(k, copy[1], copy[2], copy[3], copy[4], roots, reciprocals);
    step<1, CLIP>(k, copy[0], copy[1], copy[2], copy[4], roots, reciprocals);
    for (int x = 0; x < 5; ++x) {
      if (x != 1) std::memcpy(all_of[x], copy[x], size_t(n) * sizeof(float));
    }
  }
}

#undef EACH
#undef INLINE
#undef BINARY
#undef TERNARY
#undef UNARY

}  // namespace avx512
