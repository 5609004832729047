// Checks of the kernels of decoding without Python, for processors that are emulated. Prints what fails; the number of failures is
// the exit code.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "step.cpp"

static int failures = 0;

static void check(bool holds, const char* what, int64_t which) {
  if (!holds) std::printf("%s fails: %ld\n", what, long(which)), failures++;
}

// A number in [-1, 1).
static float noise(uint32_t i) {
  i = (i ^ i >> 16) * 0x7FEB352Du;
  i = (i ^ i >> 15) * 0x846CA68Bu;
  return float(int32_t(i ^ i >> 16)) * 0x1p-31f;
}

// Products in all formats of weights: near those in double, and of a row alone as among others, to the last bit.
static void check_products() {
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
        uint32_t bits;
        std::memcpy(&bits, &w, 4);
        narrow[row + 2 * lane + half] = uint16_t(bits >> 16);
        bits &= 0xFFFF0000u;
        float cut;
        std::memcpy(&cut, &bits, 4);
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
  for (int i = -870; i <= 870; i++) {
    const float x = 0.1f * i;
    const double e = std::exp(double(x));
    check(std::fabs(exponential(all(x))[LANES - 1] - e) <= 4e-7 * e, "exponential", i);
    check(std::fabs(gelu(all(x))[0] - 0.5 * x * std::erfc(-x * std::sqrt(0.5))) < 2e-6, "gelu", i);
  }
  float logits[37];
  for (int i = 0; i < 37; i++) logits[i] = i == 20 ? 3.0f : -1.0f;
  int32_t token;
  float logprob;
  draw_one(logits, 37, 0.0f, 0.5, &token, &logprob);
  check(token == 20 && std::fabs(logprob - std::log(std::exp(3.0) / (std::exp(3.0) + 36 * std::exp(-1.0)))) < 1e-5, "draw", token);
}

int main() {
  check_products();
  check_functions();
  return failures > 100 ? 100 : failures;
}
