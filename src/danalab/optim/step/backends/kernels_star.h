// dana_star on float32 for processors with AVX-512 or AVX2: whole vectors of 16 or 8.
//
// A step should be limited by memory, so the arithmetic has to overlap with it. With AVX-512 multipliers are the
// bottleneck: the share |g| / (|g| + r) and sqrt(q) use the divider, which runs in parallel with them. 1/r and the root
// in r would be too much for it: they are the processor's 14-bit estimates with one Newton step, accurate to an ulp. With
// AVX2 everything but sqrt(q) uses the divider, and bounds are applied to the bits, as integers, since multiplications
// compete with float minima for two of the four pipes.
//
// A step has stages over a block that fits the first-level cache: the chain of dependent operations from g to p is longer
// than the processor's window of instructions. AVX2 has more stages, of few constants each, for it has 16 registers, and
// short blocks: memory is read in the first stage and in the last, and the processor looks ahead from one to the other.

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
constexpr double unit_of_root = 1;
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
// b where `step` and x have the same sign, else a.
INLINE Vector towards_zero(Vector step, Vector x, Vector a, Vector b) {  // x = 0: any, for they are factors of x
  const Vector none = _mm256_cmp_ps(step, _mm256_setzero_ps(), _CMP_EQ_OQ);
  return _mm256_blendv_ps(b, a, _mm256_or_ps(flip(step, x), none));
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
  bool cautious;
  Vector rate, decay_factor, away, eps, sign, gain1, gain2, gain3, t, offset, clip, c_min;

  explicit Constants(const Scalars& a)
      : power(power_of(a.exponent, a.momentum)), cautious(a.cautious),
        rate(all(unit_of_root * (a.cautious ? a.lr : a.lr * a.decay_factor))), decay_factor(all(a.decay_factor)),
        away(all(a.cautious ? 1 : a.decay_factor)), eps(all(a.eps)),
        sign(all(a.sign < 0 ? -0.0 : 0.0)), gain1(all(a.gain1)), gain2(all(a.gain2)), gain3(all(a.gain3)), t(all(a.t)), offset(all(a.offset)), clip(all(unit_of_root * a.clip)),
        c_min(all(1 / (2 + a.t))) {}
};

// Parameters after weight decay. With `cautious` only those decay whose signs are those of the step.
INLINE Vector decayed(const Constants& k, Vector x, Vector step) {
  return mul(x, towards_zero(step, x, k.away, k.decay_factor));
}

INLINE Vector damping_of(const Constants& k, Vector tau) { return k.power(larger(mul(tau, k.t), all(1))); }

INLINE Vector root_q_of(const Constants& k, Vector tau) {  // in units of unit_of_root
  return root_of_odds(larger(smaller(tau, all(0.5)), k.c_min));
}

INLINE Vector moved(Vector average, Vector to, Vector gain) { return mul_add(sub(to, average), gain, average); }

INLINE Vector new_square(const Constants& k, Vector g, Vector v) { return mul_add(mul_sub(g, g, v), k.gain2, v); }

// The parameters of a vector, from its new moments; inverse: 1/r.
template <bool CLIP, bool CAUTIOUS>
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
  return sub_from(rate, direction, CAUTIOUS ? decayed(k, x, direction) : mul(x, k.decay_factor));
}

#ifdef __AVX512F__

// A step of n elements, whole vectors and at most a block.
template <bool CLIP, bool CAUTIOUS>
void advance(const Constants& k, float* __restrict p, const float* __restrict grad, float* __restrict m, float* __restrict v,
             float* __restrict tau, int64_t n) {
  alignas(64) float reciprocals[block];
  for (int64_t j = 0; j < n; j += lanes) {
    const Vector g = flip(load(grad + j), k.sign), size = size_of(g), v_new = new_square(k, g, load(v + j));
    store(m + j, moved(load(m + j), g, k.gain1));
    store(v + j, v_new);
    const Vector r = root_of(v_new, k.eps), z = reciprocal_estimate(r);
    store(tau + j, moved(load(tau + j), ratio(size, add(size, r)), k.gain3));
    store(reciprocals + j, mul(z, sub_from(r, z, all(2))));
  }
  for (int64_t j = 0; j < n; j += lanes) {
    const Vector tau_new = load(tau + j), g = flip(load(grad + j), k.sign), inverse = load(reciprocals + j);
    const Vector damping = damping_of(k, tau_new), root_q = root_q_of(k, tau_new);
    store(p + j, stepped<CLIP, CAUTIOUS>(k, load(p + j), g, load(m + j), inverse, damping, root_q));
  }
}

#else

// A step of n elements, whole vectors and at most a block.
template <bool CLIP, bool CAUTIOUS>
void advance(const Constants& k, float* __restrict p, const float* __restrict grad, float* __restrict m, float* __restrict v,
             float* __restrict tau, int64_t n) {
  alignas(64) float roots[block], damping[block];
  for (int64_t j = 0; j < n; j += lanes) {
    const Vector g = flip(load(grad + j), k.sign), v_new = new_square(k, g, load(v + j));
    store(m + j, moved(load(m + j), g, k.gain1));
    store(v + j, v_new);
    store(roots + j, root_of(v_new, k.eps));
  }
  for (int64_t j = 0; j < n; j += lanes) {
    const Vector size = size_of(load(grad + j));
    store(tau + j, moved(load(tau + j), ratio(size, add(size, load(roots + j))), k.gain3));
  }
  for (int64_t j = 0; j < n; j += lanes) store(damping + j, damping_of(k, load(tau + j)));
  for (int64_t j = 0; j < n; j += lanes) {
    const Vector g = flip(load(grad + j), k.sign), inverse = ratio(all(1), load(roots + j)), root_q = root_q_of(k, load(tau + j));
    store(p + j, stepped<CLIP, CAUTIOUS>(k, load(p + j), g, load(m + j), inverse, load(damping + j), root_q));
  }
}

#endif

template <bool CLIP, bool CAUTIOUS>
void run_blocks(const Constants& k, float* __restrict p, const float* __restrict grad, float* __restrict m, float* __restrict v,
                float* __restrict tau, int64_t begin, int64_t end) {
  const int64_t whole = begin + (end - begin) / lanes * lanes;
  for (int64_t i = begin; i < whole; i += block) {
    prefetch(i, p, grad, m, v, tau);
    advance<CLIP, CAUTIOUS>(k, p + i, grad + i, m + i, v + i, tau + i, whole - i < block ? whole - i : block);
  }
  if (whole == end) return;
  // The rest, in copies that are a whole vector: the same operations, so the same bits.
  alignas(64) float copy[5][lanes] = {};
  float* const all_of[5] = {p + whole, const_cast<float*>(grad) + whole, m + whole, v + whole, tau + whole};
  for (int x = 0; x < 5; ++x) std::memcpy(copy[x], all_of[x], size_t(end - whole) * sizeof(float));
  advance<CLIP, CAUTIOUS>(k, copy[0], copy[1], copy[2], copy[3], copy[4], lanes);
  for (int x = 0; x < 5; ++x) {
    if (x != 1) std::memcpy(all_of[x], copy[x], size_t(end - whole) * sizeof(float));
  }
}

// Elements [begin, end) of one parameter, as run_star in kernels.cpp.
template <bool CLIP>
void run_star(const Constants& k, float* __restrict p, const float* __restrict grad, float* __restrict m, float* __restrict v,
              float* __restrict tau, int64_t begin, int64_t end) {
  (k.cautious ? run_blocks<CLIP, true> : run_blocks<CLIP, false>)(k, p, grad, m, v, tau, begin, end);
}

#undef INLINE

}  // namespace star
