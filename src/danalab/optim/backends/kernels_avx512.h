// dana_star on float32 for processors with AVX-512: whole vectors of 16.
//
// A step should be limited by memory, so the arithmetic has to overlap with it; multipliers are its bottleneck. The share
// |g| / (|g| + r) and sqrt(q) use the divider, which runs in parallel with the multipliers. 1/r and the root in r would
// be too much for it: they are the processor's 14-bit estimates with one Newton step, accurate to an ulp. The power
// T^(1-kappa) comes from tables: 2^((1-kappa) e) for the exponent e of T, and for the mantissa the coefficients of a
// parabola for each of 32 intervals of [1, 2). The clip is one instruction.
//
// A step has two stages over a block that fits the first-level cache: the chain of dependent operations from g to p is
// longer than the processor's window of instructions.

// Included by kernels.cpp, whose Scalars it takes.

namespace avx512 {

constexpr int lanes = 16, block = 256;

using Vector = __m512;

#define INLINE __attribute__((always_inline)) inline

inline Vector all(double x) { return _mm512_set1_ps(float(x)); }
INLINE Vector load(const float* from) { return _mm512_loadu_ps(from); }
INLINE void store(float* to, Vector a) { _mm512_storeu_ps(to, a); }
INLINE Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
INLINE Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
INLINE Vector larger(Vector a, Vector b) { return _mm512_max_ps(a, b); }
INLINE Vector smaller(Vector a, Vector b) { return _mm512_min_ps(a, b); }
INLINE Vector flip(Vector a, Vector signs) { return _mm512_xor_ps(a, signs); }
INLINE Vector mul_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
INLINE Vector mul_sub(Vector a, Vector b, Vector c) { return _mm512_fmsub_ps(a, b, c); }    // a b - c
INLINE Vector sub_from(Vector a, Vector b, Vector c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
INLINE Vector within(Vector a, Vector bound) { return _mm512_range_ps(a, bound, 2); }  // smaller size, sign of a
INLINE Vector halve(Vector a) {  // of a normal number
  return _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_castps_si512(a), _mm512_set1_epi32(1 << 23)));
}

// A function of five bits, the last ones of `place`.
struct Table {
  Vector low, high;

  explicit Table(const float* values) : low(load(values)), high(load(values + lanes)) {}
  Vector at(__m512i place) const { return _mm512_permutex2var_ps(low, place, high); }
};

// momentum T^k for the effective times T >= 1.
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

// What does not depend on the element.
struct Constants {
  Power power;
  Vector rate, decay_factor, away, eps, sign, gain1, gain2, gain3, t, offset, clip, c_min;

  explicit Constants(const Scalars& a)
      : power(power_of(a.exponent, a.momentum)), rate(all(a.cautious ? a.lr : a.lr * a.decay_factor)), decay_factor(all(a.decay_factor)),
        away(all(a.cautious ? 1 : a.decay_factor)), eps(all(a.eps)),
        sign(all(a.sign < 0 ? -0.0 : 0.0)), gain1(all(a.gain1)), gain2(all(a.gain2)), gain3(all(a.gain3)), t(all(a.t)), offset(all(a.offset)), clip(all(a.clip)),
        c_min(all(1 / (2 + a.t))) {}
};

// Moments of a vector; 1/r is left for the second stage.
INLINE void moments(const Constants& k, const float* grad, float* m, float* v, float* tau, float* reciprocals) {
  const Vector two = all(2), half = all(0.5), smallest = all(1.2e-38);
  const Vector g = flip(load(grad), k.sign), size = _mm512_abs_ps(g), m_old = load(m), v_old = load(v);
  const Vector v_new = mul_add(mul_sub(g, g, v_old), k.gain2, v_old);
  store(m, mul_add(sub(g, m_old), k.gain1, m_old));
  store(v, v_new);
  // sqrt(v) = v / sqrt(v)
  const Vector y = _mm512_rsqrt14_ps(larger(v_new, smallest)), s = mul(v_new, y);
  const Vector r = mul_add(s, sub_from(s, halve(y), half), add(s, k.eps)), z = _mm512_rcp14_ps(r);
  const Vector tau_old = load(tau), share = _mm512_div_ps(size, add(size, r));
  store(tau, mul_add(sub(share, tau_old), k.gain3, tau_old));
  store(reciprocals, mul(z, sub_from(r, z, two)));
}

// Parameters after weight decay. With `cautious` only those decay whose signs are those of the step.
INLINE Vector decayed(const Constants& k, Vector x, Vector step) {
  const Vector zero = _mm512_setzero_ps(), kept = mul(x, k.away);
  const __mmask16 above = _mm512_cmp_ps_mask(step, zero, _CMP_GT_OQ), below = _mm512_cmp_ps_mask(step, zero, _CMP_LT_OQ);
  const __mmask16 towards = _mm512_mask_cmp_ps_mask(above, x, zero, _CMP_GT_OQ) | _mm512_mask_cmp_ps_mask(below, x, zero, _CMP_LT_OQ);
  return _mm512_mask_mul_ps(kept, towards, x, k.decay_factor);
}

// The step of a vector from its new moments.
template <bool CLIP>
INLINE void step(const Constants& k, float* p, const float* grad, const float* m, const float* tau,
                 const float* reciprocals) {
  const Vector one = all(1), half = all(0.5), tau_new = load(tau);
  const Vector damping = k.power(larger(mul(tau_new, k.t), one));
  const Vector c = larger(smaller(tau_new, half), k.c_min), root_q = _mm512_sqrt_ps(_mm512_div_ps(c, sub(one, c)));
  const Vector m_new = load(m), g = flip(load(grad), k.sign), inverse = load(reciprocals), x = load(p);
  if (CLIP) {  // NaN does not pass `within`, but g or m is NaN then, too
    const Vector damped = within(mul(damping, mul(m_new, inverse)), mul(root_q, k.clip));
    const Vector direction = mul_add(mul_add(m_new, k.offset, g), inverse, damped);
    store(p, sub_from(mul(root_q, k.rate), direction, decayed(k, x, direction)));
  } else {
    const Vector direction = mul_add(add(damping, k.offset), m_new, g);
    store(p, sub_from(mul(mul(root_q, inverse), k.rate), direction, decayed(k, x, direction)));
  }
}

// Elements [begin, end) of one parameter, as run_star in kernels.cpp.
template <bool CLIP>
void run_star(const Constants& k, float* __restrict p, const float* __restrict grad, float* __restrict m, float* __restrict v,
              float* __restrict tau, int64_t begin, int64_t end) {
  alignas(64) float reciprocals[block];
  int64_t i = begin;
  for (; i + block <= end; i += block) {
    for (int64_t j = 0; j < block; j += lanes) {
      moments(k, grad + i + j, m + i + j, v + i + j, tau + i + j, reciprocals + j);
    }
    for (int64_t j = 0; j < block; j += lanes) {
      step<CLIP>(k, p + i + j, grad + i + j, m + i + j, tau + i + j, reciprocals + j);
    }
  }
  for (; i < end; i += lanes) {  // the rest, in copies that are whole vectors: the same operations, so the same bits
    const int64_t n = end - i < lanes ? end - i : lanes;
    alignas(64) float copy[5][lanes] = {};
    float* const all_of[5] = {p + i, const_cast<float*>(grad) + i, m + i, v + i, tau + i};
    for (int x = 0; x < 5; ++x) std::memcpy(copy[x], all_of[x], size_t(n) * sizeof(float));
    moments(k, copy[1], copy[2], copy[3], copy[4], reciprocals);
    step<CLIP>(k, copy[0], copy[1], copy[2], copy[4], reciprocals);
    for (int x = 0; x < 5; ++x) {
      if (x != 1) std::memcpy(all_of[x], copy[x], size_t(n) * sizeof(float));
    }
  }
}

#undef INLINE

}  // namespace avx512
