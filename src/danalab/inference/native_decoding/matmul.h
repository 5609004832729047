// y = W x + b for a few rows x, with W packed into panels of two vectors of outputs: [N / PANEL][K][PANEL].
//
// Each output is one chain of multiply-adds over k = 0 ... K - 1, whatever the number of rows, so a row's result is
// bitwise the same alone and in any batch. A row alone reads the weights once, at the speed of memory; several rows
// share what is read.

#pragma once

#include <type_traits>
#include <vector>

#include "vectors.h"

constexpr int VECTORS = 2;
constexpr int PANEL = VECTORS * LANES;

enum class Weight : int32_t { float32, bfloat16, int8 };

struct Matrix {
  const void* data;    // panels
  const float* scale;  // of each output, for int8; else null
  const float* bias;   // of each output, or null
  int32_t outputs, inputs;
  Weight kind;
  int32_t unused;
  int64_t panels() const { return padded(outputs, PANEL) / PANEL; }
  int64_t width() const { return panels() * PANEL; }  // of a row of results
};

// The weights of one input and the outputs of a panel.
struct PanelRow {
  Vector low, high;
};

inline PanelRow load_row(const float* from) { return {load(from), load(from + LANES)}; }

inline PanelRow load_row(const int8_t* from) { return {load(from), load(from + LANES)}; }

// bfloat16 is the upper half of a float32: outputs i and i + LANES share a word, so that no lane has to move.
inline PanelRow load_row(const uint16_t* from) {
  Integers words;
  std::memcpy(&words, from, sizeof words);
  return {as_floats(words << 16), as_floats(words & int32_t(0xFFFF0000u))};
}

// M rows times the weights of P panels, of which panel `first` of the matrix is the first; results begin at y.
template <class W, int M, int P>
inline void tile(const Matrix& matrix, const W* weights, int64_t first, const float* x, int64_t x_stride, float* y,
                 int64_t y_stride) {
  const int64_t inputs = matrix.inputs;
  Vector total[M][P * VECTORS] = {};
  for (int64_t k = 0; k < inputs; k++) {
    const W* at = weights + k * PANEL;
    if constexpr (M <= 2) {  // inputs stay in registers, weights pass through them; else the other way round
      Vector b[M];
      for (int m = 0; m < M; m++) b[m] = all(x[m * x_stride + k]);
#pragma GCC unroll 8
      for (int p = 0; p < P; p++) {
        const PanelRow row = load_row(at + p * inputs * PANEL);
        for (int m = 0; m < M; m++) total[m][2 * p] += row.low * b[m];
        for (int m = 0; m < M; m++) total[m][2 * p + 1] += row.high * b[m];
      }
    } else {
      Vector w[P * VECTORS];
#pragma GCC unroll 8
      for (int p = 0; p < P; p++) {
        const PanelRow row = load_row(at + p * inputs * PANEL);
        keep_in_register(w[2 * p] = row.low), keep_in_register(w[2 * p + 1] = row.high);
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const Vector b = all(x[m * x_stride + k]);
#pragma GCC unroll 16
        for (int i = 0; i < P * VECTORS; i++) total[m][i] += w[i] * b;
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < P * VECTORS; i++) {
    const int64_t output = first * PANEL + i * LANES;
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      Vector v = total[m][i];
      if (matrix.scale) v *= load(matrix.scale + output);
      if (matrix.bias) v += load(matrix.bias + output);
      store(y + m * y_stride + i * LANES, v);
    }
  }
}

// Most rows of a tile, by its panels: sums, weights and an input of one row have to fit the registers, and few sums would
// wait for each other.
#if defined(__AVX512F__) || defined(__aarch64__)  // 32 registers
constexpr int rows_of_tile(int panels) { return panels == 4 ? 2 : 6; }
#else  // 16
constexpr int rows_of_tile(int panels) { return panels == 4 ? 1 : panels == 2 ? 2 : 6; }
#endif
constexpr int ROWS = rows_of_tile(1);

// All rows times P panels, in tiles of about as many rows each: the panels stay in the cache.
template <class W, int P>
inline void tiles(const Matrix& matrix, const W* weights, int64_t panel, const float* x, int64_t x_stride, int64_t rows,
                  float* y, int64_t y_stride) {
  constexpr int MOST = rows_of_tile(P);
  for (int64_t left = (rows + MOST - 1) / MOST; left; left--) {
    const int64_t part = (rows + left - 1) / left;
    switch (part) {
      case 1: tile<W, 1, P>(matrix, weights, panel, x, x_stride, y, y_stride); break;
      case 2: tile<W, MOST < 2 ? 1 : 2, P>(matrix, weights, panel, x, x_stride, y, y_stride); break;
      case 3: tile<W, MOST < 3 ? 1 : 3, P>(matrix, weights, panel, x, x_stride, y, y_stride); break;
      case 4: tile<W, MOST < 4 ? 1 : 4, P>(matrix, weights, panel, x, x_stride, y, y_stride); break;
      case 5: tile<W, MOST < 5 ? 1 : 5, P>(matrix, weights, panel, x, x_stride, y, y_stride); break;
      default: tile<W, MOST, P>(matrix, weights, panel, x, x_stride, y, y_stride);
    }
    rows -= part;
    x += part * x_stride;
    y += part * y_stride;
  }
}

// The same; for many rows small formats become float32 once, not in each tile (measured: no gain for 16 rows).
template <class W, int P>
inline void block(const Matrix& matrix, int64_t panel, const float* x, int64_t x_stride, int64_t rows, float* y,
                  int64_t y_stride) {
  const int64_t count = int64_t(matrix.inputs) * P;
  const W* weights = static_cast<const W*>(matrix.data) + panel * matrix.inputs * PANEL;
  if constexpr (!std::is_same_v<W, float>) {
    if (rows > 16) {
      static thread_local std::vector<float> plain;
      plain.resize(count * PANEL);
      for (int64_t k = 0; k < count; k++) {
        const PanelRow row = load_row(weights + k * PANEL);
        store(&plain[k * PANEL], row.low), store(&plain[k * PANEL + LANES], row.high);
      }
      tiles<float, P>(matrix, plain.data(), panel, x, x_stride, rows, y, y_stride);
      return;
    }
  }
  tiles<W, P>(matrix, weights, panel, x, x_stride, rows, y, y_stride);
}

template <class W>
inline void multiply_as(const Matrix& matrix, Share panels, const float* x, int64_t x_stride, int64_t rows, float* y,
                        int64_t y_stride) {
  int64_t panel = panels.from;
  const auto to = [&] { return y + (panel - panels.from) * PANEL; };
  if (rows <= rows_of_tile(4))  // enough independent sums also for few rows
    for (; panel + 4 <= panels.to; panel += 4) block<W, 4>(matrix, panel, x, x_stride, rows, to(), y_stride);
  if (rows <= rows_of_tile(2) || rows_of_tile(2) == ROWS)
    for (; panel + 2 <= panels.to; panel += 2) block<W, 2>(matrix, panel, x, x_stride, rows, to(), y_stride);
  for (; panel < panels.to; panel++) block<W, 1>(matrix, panel, x, x_stride, rows, to(), y_stride);
}

// The outputs of some panels for `rows` rows; those of the first panel go to y.
inline void multiply(const Matrix& matrix, Share panels, const float* x, int64_t x_stride, int64_t rows, float* y,
                     int64_t y_stride) {
  switch (matrix.kind) {
    case Weight::float32: multiply_as<float>(matrix, panels, x, x_stride, rows, y, y_stride); break;
    case Weight::bfloat16: multiply_as<uint16_t>(matrix, panels, x, x_stride, rows, y, y_stride); break;
    case Weight::int8: multiply_as<int8_t>(matrix, panels, x, x_stride, rows, y, y_stride); break;
  }
}
