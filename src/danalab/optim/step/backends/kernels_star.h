// dana_star on float32 for processors with AVX-512 or AVX2: whole vectors of 16 or 8.
//
// A step should be limited by memory, so the arithmetic has to overlap with it. With AVX-512 multipliers are the
// bottleneck: the share |g| / (|g| + r) and sqrt(q) use the divider, which runs in parallel with them. 1/r and the root
// in r would be too much for it: they are the processor's 14-bit estimates with one Newton step, accurate to an ulp. With
// AVX2 estimates have 12 bits: the root in r and the share use the divider, 1/r and sqrt(q) are estimates.
//
// A step has stages over a block that fits the first-level cache: the chain of dependent operations from g to p is longer
// than the processor's window of instructions. With AVX2 the power is a stage of its own.

// Included by kernels.cpp, whose Scalars it takes.

namespace star {

#define INLINE __attribute__((always_inline)) inline

#ifdef __AVX512F__

constexpr int lanes = 16;
constexpr double least_exponent = -1;  // of the power: its polynomials are too short for others

using Vector = __m512;

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
INLINE Vector root_of_odds(Vector c) { return _mm512_sqrt_ps(ratio(c, sub(all(1), c))); }  // sqrt(c / (1 - c))
// b where `step` and x have the same sign, else a.
INLINE Vector towards_zero(Vector step, Vector x, Vector a, Vector b) {
  const Vector zero = _mm512_setzero_ps();
  const __mmask16 above = _mm512_cmp_ps_mask(step, zero, _CMP_GT_OQ), below = _mm512_cmp_ps_mask(step, zero, _CMP_LT_OQ);
  const __mmask16 same = _mm512_mask_cmp_ps_mask(above, x, zero, _CMP_GT_OQ) | _mm512_mask_cmp_ps_mask(below, x, zero, _CMP_LT_OQ);
  return _mm512_mask_blend_ps(same, a, b);
}

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

inline Vector all(double x) { return _mm256_set1_ps(float(x)); }
INLINE Vector load(const float* from) { return _mm256_loadu_ps(from); }
INLINE void store(float* to, Vector a) { _mm256_storeu_ps(to, a); }
INLINE Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
INLINE Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
INLINE Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
INLINE Vector ratio(Vector a, Vector b) { return _mm256_div_ps(a, b); }
INLINE Vector size_of(Vector a) { return _mm256_andnot_ps(all(-0.0), a); }
INLINE Vector larger(Vector a, Vector b) { return _mm256_max_ps(a, b); }
INLINE Vector smaller(Vector a, Vector b) { return _mm256_min_ps(a, b); }
INLINE Vector flip(Vector a, Vector signs) { return _mm256_xor_ps(a, signs); }
INLINE Vector mul_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }    // a b + c
INLINE Vector mul_sub(Vector a, Vector b, Vector c) { return _mm256_fmsub_ps(a, b, c); }    // a b - c
INLINE Vector sub_from(Vector a, Vector b, Vector c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
INLINE Vector within(Vector a, Vector bound) { return larger(smaller(a, bound), flip(bound, all(-0.0))); }
INLINE Vector reciprocal_estimate(Vector a) { return _mm256_rcp_ps(a); }
INLINE Vector root_of(Vector v, Vector eps) { return add(_mm256_sqrt_ps(v), eps); }  // sqrt(v) + eps
INLINE Vector root_of_odds(Vector c) {  // sqrt(c / (1 - c)) = c / sqrt(c (1 - c))
  const Vector square = sub_from(c, c, c), y = _mm256_rsqrt_ps(square);
  return mul(mul(c, y), sub_from(mul(square, all(0.5)), mul(y, y), all(1.5)));
}
// b where `step` and x have the same sign, else a.
INLINE Vector towards_zero(Vector step, Vector x, Vector a, Vector b) {  // x = 0: any, for they are factors of x
  const Vector none = _mm256_cmp_ps(step, _mm256_setzero_ps(), _CMP_EQ_OQ);
  return _mm256_blendv_ps(b, a, _mm256_or_ps(flip(step, x), none));
}

// A function of three bits, the last ones of `place`.
struct Table {
  Vector values;

  explicit Table(const float* values) : values(load(values)) {}
  INLINE Vector at(__m256i place) const { return _mm256_permutevar8x32_ps(values, place); }
};

// momentum T^k for the effective times T >= 1, from tables: 2^(k e) for the exponent e of T, in two parts, and for the
// mantissa the coefficients of a cubic for each of 8 intervals of [1, 2).
struct Power {
  Table low, high, constant, linear, square, cube;

  INLINE Vector operator()(Vector time) const {
    const __m256i bits = _mm256_castps_si256(time), piece = _mm256_srli_epi32(bits, 20);
    const __m256i mantissa = _mm256_and_si256(bits, _mm256_set1_epi32(0x007FFFFF));
    const Vector f = _mm256_castsi256_ps(_mm256_or_si256(mantissa, _mm256_set1_epi32(0x3F800000)));
    const Vector scale = mul(low.at(_mm256_srli_epi32(bits, 23)), high.at(_mm256_srli_epi32(bits, 26)));
    return mul(mul_add(mul_add(mul_add(cube.at(piece), f, square.at(piece)), f, linear.at(piece)), f, constant.at(piece)), scale);
  }
};

inline Power power_of(double k, double momentum) {
  float low[8], high[8], constant[8], linear[8], square[8], cube[8];
  for (int i = 0; i < 8; ++i) {
    low[i] = float(std::exp2(k * (i - 7)));                    // looked up by 127 + e, the exponent's bits
    high[(15 + i) & 7] = float(std::exp2(k * 8 * i) * momentum);
    // (c + x)^k by its series around the middle c of a piece, with the term of x^4 spread over x^2 and 1 so that the error
    // is least.
    const double c = 1 + (i + 0.5) / 8, value = std::pow(c, k), h2 = 1.0 / 256 / (c * c);
    const double fourth = k * (k - 1) * (k - 2) * (k - 3) / 24;
    const double a3 = k * (k - 1) * (k - 2) / 6, a2 = k * (k - 1) / 2 + fourth * h2, a0 = 1 - fourth * h2 * h2 / 8;
    const double d3 = a3 * value / (c * c * c), d2 = a2 * value / (c * c), d1 = k * value / c, d0 = a0 * value;
    cube[i] = float(d3);
    square[i] = float(d2 - 3 * c * cube[i]);
    linear[i] = float(d1 - c * (2 * square[i] + 3 * c * cube[i]));
    constant[i] = float(d0 - c * (linear[i] + c * (square[i] + c * cube[i])));  // compensates for the rounding of others
  }
  return {Table(low), Table(high), Table(constant), Table(linear), Table(square), Table(cube)};
}

#endif

constexpr int block = 256;
constexpr bool separate_power = lanes == 8;

// Of a block, from one stage to the next.
struct Between {
  alignas(64) float reciprocals[block], damping[block];
};

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
  const Vector g = flip(load(grad), k.sign), size = size_of(g), m_old = load(m), v_old = load(v);
  const Vector v_new = mul_add(mul_sub(g, g, v_old), k.gain2, v_old);
  store(m, mul_add(sub(g, m_old), k.gain1, m_old));
  store(v, v_new);
  const Vector r = root_of(v_new, k.eps), z = reciprocal_estimate(r);
  const Vector tau_old = load(tau), share = ratio(size, add(size, r));
  store(tau, mul_add(sub(share, tau_old), k.gain3, tau_old));
  store(reciprocals, mul(z, sub_from(r, z, all(2))));
}

// Parameters after weight decay. With `cautious` only those decay whose signs are those of the step.
INLINE Vector decayed(const Constants& k, Vector x, Vector step) {
  return mul(x, towards_zero(step, x, k.away, k.decay_factor));
}

INLINE Vector damping_of(const Constants& k, const float* tau) { return k.power(larger(mul(load(tau), k.t), all(1))); }

// The step of a vector, at j of its block, from its new moments.
template <bool CLIP>
INLINE void step(const Constants& k, float* p, const float* grad, const float* m, const float* tau,
                 const Between& between, int64_t j) {
  const Vector tau_new = load(tau), damping = separate_power ? load(between.damping + j) : damping_of(k, tau);
  const Vector root_q = root_of_odds(larger(smaller(tau_new, all(0.5)), k.c_min));
  const Vector m_new = load(m), g = flip(load(grad), k.sign), inverse = load(between.reciprocals + j), x = load(p);
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
  Between between;
  int64_t i = begin;
  for (; i + block <= end; i += block) {
    for (int64_t j = 0; j < block; j += lanes) {
      moments(k, grad + i + j, m + i + j, v + i + j, tau + i + j, between.reciprocals + j);
    }
    for (int64_t j = 0; separate_power && j < block; j += lanes) {
      store(between.damping + j, damping_of(k, tau + i + j));
    }
    for (int64_t j = 0; j < block; j += lanes) {
      step<CLIP>(k, p + i + j, grad + i + j, m + i + j, tau + i + j, between, j);
    }
  }
  for (; i < end; i += lanes) {  // the rest, in copies that are whole vectors: the same operations, so the same bits
    const int64_t n = end - i < lanes ? end - i : lanes;
    alignas(64) float copy[5][lanes] = {};
    float* const all_of[5] = {p + i, const_cast<float*>(grad) + i, m + i, v + i, tau + i};
    for (int x = 0; x < 5; ++x) std::memcpy(copy[x], all_of[x], size_t(n) * sizeof(float));
    moments(k, copy[1], copy[2], copy[3], copy[4], between.reciprocals);
    store(between.damping, damping_of(k, copy[4]));
    step<CLIP>(k, copy[0], copy[1], copy[2], copy[4], between, 0);
    for (int x = 0; x < 5; ++x) {
      if (x != 1) std::memcpy(all_of[x], copy[x], size_t(n) * sizeof(float));
    }
  }
}

#undef INLINE

}  // namespace star
