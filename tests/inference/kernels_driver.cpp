// Checks of the kernels without Python, for processors that are emulated. Prints what fails; the number of failures is
// the exit code.

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cstdio>
#include <thread>
#include <type_traits>
#include <vector>

#if defined(__SSE4_1__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "kernels.cpp"
namespace decoder {  // both have a `load` and a `Vector`
#include "step.cpp"
}

static int failures = 0;

static void check(bool holds, const char* what, int64_t which) {
  if (!holds) std::printf("%s fails: %ld\n", what, long(which)), failures++;
}

static float noise(uint32_t i) { return float(int32_t(hash32(i))) * 0x1p-31f; }

// Products in all formats of weights: near those in double, and of a row alone as among others, to the last bit.
static void check_products() {
  using namespace decoder;
  const int64_t K = 53, N = 3 * PANEL + 1, rows = 13, width = padded(N, PANEL);
  for (int kind = 0; kind < 3; kind++) {
    std::vector<float> packed(width * K), x(rows * K), y(rows * width), alone(width), scale(width, 0.01f), bias(width, 1.0f);
    std::vector<uint16_t> narrow(width * K);
    std::vector<int8_t> bytes(width * K);
    std::vector<double> weights(width * K);  // [K][width]
    for (int64_t i = 0; i < rows * K; i++) x[i] = noise(i);
    for (int64_t k = 0; k < K; k++)
      for (int64_t n = 0; n < width; n++) {
        const float w = noise(1000 + k * width + n);
        const int64_t lane = n % LANES, half = n % PANEL / LANES, row = (n / PANEL * K + k) * PANEL;
        packed[row + n % PANEL] = w;
        bytes[row + n % PANEL] = int8_t(127 * w);
        narrow[row + 2 * lane + half] = uint16_t(bits_of(w) >> 16);
        const float cut = float_of(bits_of(w) & 0xFFFF0000u);
        weights[k * width + n] = kind == 0 ? w : kind == 1 ? cut : 0.01f * int8_t(127 * w);
      }
    const void* const data[] = {packed.data(), narrow.data(), bytes.data()};
    const Matrix matrix{data[kind], kind == 2 ? scale.data() : nullptr, bias.data(), int32_t(N), int32_t(K), Weight(kind), 0};
    for (int64_t count = 1; count <= rows; count++) {
      multiply(matrix, Share(matrix.panels(), 0, 1), x.data(), K, count, y.data(), width);
      for (int64_t row = 0; row < count; row++) {
        multiply(matrix, Share(matrix.panels(), 0, 1), x.data() + row * K, K, 1, alone.data(), width);
        check(!std::memcmp(alone.data(), y.data() + row * width, N * sizeof(float)), "a row alone", 100 * count + row);
        for (int64_t n = 0; n < N; n++) {
          double want = 1;
          for (int64_t k = 0; k < K; k++) want += weights[k * width + n] * x[row * K + k];
          check(std::fabs(y[row * width + n] - want) < 2e-5, "a product", 1000 * kind + n);
        }
      }
    }
  }
}

static void check_functions() {
  using namespace decoder;
  for (int i = -870; i <= 870; i++) {
    const float x = 0.1f * i;
    const double e = std::exp(double(x));
    check(std::fabs(exponential(decoder::all(x))[LANES - 1] - e) <= 4e-7 * e, "exponential", i);
    check(std::fabs(gelu(decoder::all(x))[0] - 0.5 * x * std::erfc(-x * std::sqrt(0.5))) < 2e-6, "gelu", i);
  }
  float logits[37];
  for (int i = 0; i < 37; i++) logits[i] = i == 20 ? 3.0f : -1.0f;
  int32_t token;
  float logprob;
  draw_one(logits, 37, 0.0f, 0.5, &token, &logprob);
  check(token == 20 && std::fabs(logprob - std::log(std::exp(3.0) / (std::exp(3.0) + 36 * std::exp(-1.0)))) < 1e-5, "draw", token);
}

// A step of every rule in float32: near that in double, and the same for any number of threads.
template <Rule RULE>
static void check_rule() {
  const int64_t n = 40'001;
  Scalars a{};
  a.lr = 0.01, a.decay_factor = 0.999, a.eps = 1e-8, a.sign = 1, a.gain1 = 0.1, a.gain2 = 0.02, a.gain3 = 0.05;
  a.momentum = 0.7, a.offset = 0.3, a.clip = 2, a.t = 100, a.exponent = 0.15, a.root_scale = 1.1, a.floor = 0.1;
  std::vector<float> first[5], now[5];
  std::vector<double> wide[5];
  for (int threads : {1, 3, 0}) {  // 0: in double
    for (int i = 0; i < 5; i++) {
      now[i].resize(n), wide[i].resize(n);
      for (int64_t j = 0; j < n; j++) {
        const float x = noise(uint32_t(i * n + j));
        wide[i][j] = now[i][j] = i > 2 ? std::fabs(x) : x;  // p, g, m, v, third
      }
    }
    void* of[5];
    for (int i = 0; i < 5; i++) of[i] = threads ? static_cast<void*>(now[i].data()) : wide[i].data();
    void* none = nullptr;
    const int32_t dtype = threads ? 0 : 1, zero = 0;
    const uint32_t index = 0;
    const Tensors x{&of[0], const_cast<const void**>(&of[1]), &of[2], &of[3], &of[4], &none, &none, &none, &none,
                    &n, &n, &dtype, &zero, &zero, &index, &zero, &a};
    run_all<RULE>(x, 1, threads ? threads : 1);
    for (int i : {0, 2, 3, 4}) {
      if (threads == 1) first[i] = now[i];
      if (threads == 3) check(now[i] == first[i], "threads", 10 * RULE + i);
      for (int64_t j = 0; !threads && j < n; j++)
        check(std::fabs(first[i][j] - wide[i][j]) <= 1e-5 + 1e-5 * std::fabs(wide[i][j]), "a rule", 10 * RULE + i);
    }
  }
}

int main() {
  check_products();
  check_functions();
  check_rule<ADANA>();
  check_rule<DANA_STAR>();
  check_rule<ADAMW_DECAYING_WD>();
  check_rule<ADEMAMIX>();
  check_rule<DANA>();
  check_rule<AUTO_DANA>();
  return failures > 100 ? 100 : failures;
}
