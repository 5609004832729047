// Causal attention of new tokens over blocks of cached keys and values.
//
// A sequence's position t is in block tables[t / 16], place t % 16: in a block, keys are stored feature by feature, so
// that a vector holds one feature of several positions; values position by position.

#pragma once

#include <algorithm>
#include <vector>

#include "model.h"

constexpr int BLOCK = 16;                 // positions
constexpr int PARTS = BLOCK / LANES;      // of a block, one vector of positions each
constexpr int CHAINS = PARTS > 2 ? 2 : 4;  // independent sums of a score

inline void rotate(float* head, const float* table, int64_t pairs) {
  for (int64_t j = 0; j < pairs; j++) {
    const float even = head[2 * j], odd = head[2 * j + 1], cosine = table[2 * j], sine = table[2 * j + 1];
    head[2 * j] = even * cosine - odd * sine;
    head[2 * j + 1] = odd * cosine + even * sine;
  }
}

inline const int32_t* table_of(const Batch& batch, int64_t row) {
  return batch.tables + int64_t(batch.slots[batch.sequence_of[row]]) * batch.table_width;
}

// Normalise and rotate queries and keys, and store keys and values in the cache.
inline void prepare_heads(const Model& model, const Layer& layer, const Batch& batch, const Buffers& b, Thread thread) {
  const int64_t H = model.head_dim, N = model.heads, K = model.kv_heads, H_padded = padded(H, LANES);
  const Share share = thread.share(batch.rows * (N + K));
  for (int64_t item = share.from; item < share.to; item++) {
    const int64_t row = item / (N + K), head = item % (N + K), position = batch.positions[row];
    float* q = b.wide + row * b.wide_stride + head * H;  // queries, then keys
    const Norm& norm = head < N ? layer.head_norm_q : layer.head_norm_k;
    if (norm.gain) norm.apply(q, q, H);
    if (model.rotary) rotate(q, model.rotary + position * model.pairs * 2, model.pairs);
    if (head < N) continue;
    const float* v = q + K * H;
    const int64_t place = position % BLOCK, of = int64_t(table_of(batch, row)[position / BLOCK]) * K + head - N;
    float* keys = layer.keys + of * H * BLOCK + place;
    for (int64_t h = 0; h < H; h++) keys[h * BLOCK] = q[h];
    float* values = layer.values + (of * BLOCK + place) * H_padded;
    for (int64_t h = 0; h < H; h++) values[h] = v[h];
  }
}

// exp(q . k / sqrt(H) - maximum) of the positions 0 ... n - 1 of one head, 0 up to the block's end; returns their sum.
inline float attention_weights(const float* q, const float* keys, const int32_t* table, int64_t n, int64_t H,
                               int64_t block_stride, float scale, float* weights) {
  const int64_t blocks = padded(n, BLOCK) / BLOCK;
  Vector highest = all(-INFINITY);
  for (int64_t i = 0; i < blocks; i++) {
    const float* k = keys + table[i] * block_stride;
    Vector chain[CHAINS][PARTS] = {};
    const auto add = [&](int64_t h, int c) {
      const Vector b = all(q[h]);
      for (int p = 0; p < PARTS; p++) chain[c][p] += load(k + h * BLOCK + p * LANES) * b;
    };
    int64_t h = 0;
    for (; h + CHAINS <= H; h += CHAINS)
      for (int c = 0; c < CHAINS; c++) add(h + c, c);
    for (; h < H; h++) add(h, 0);
    for (int p = 0; p < PARTS; p++) {
      Vector score = chain[0][p] + chain[1][p];
      if (CHAINS == 4) score += chain[CHAINS - 2][p] + chain[CHAINS - 1][p];
      score *= scale;
      for (int64_t lane = std::max<int64_t>(n - i * BLOCK - p * LANES, 0); lane < LANES; lane++)
        score[lane] = -INFINITY;  // what others left there may be anything
      highest = score > highest ? score : highest;
      store(weights + i * BLOCK + p * LANES, score);
    }
  }
  const float maximum = largest(highest);
  Vector total = {};
  for (int64_t at = 0; at < blocks * BLOCK; at += LANES) {
    Vector e = exponential(load(weights + at) - maximum);
    for (int64_t lane = std::max<int64_t>(n - at, 0); lane < LANES; lane++) e[lane] = 0;
    total += e;
    store(weights + at, e);
  }
  return sum(total);
}

// sum over positions of weights * values / total, for C vectors of features.
template <int C>
inline void weighted_values(const float* weights, float total, const float* values, const int32_t* table, int64_t n,
                            int64_t H_padded, int64_t block_stride, float* y) {
  Vector mean[C] = {};
  for (int64_t t = 0; t < n; t++) {
    const float* v = values + table[t / BLOCK] * block_stride + t % BLOCK * H_padded;
    const Vector weight = all(weights[t]);
    for (int c = 0; c < C; c++) mean[c] += load(v + c * LANES) * weight;
  }
  for (int c = 0; c < C; c++) store(y + c * LANES, mean[c] / total);
}

// Each head of each row over all its positions; the result, gated if the layer has a gate, in `mixed`.
inline void attend(const Model& model, const Layer& layer, const Batch& batch, const Buffers& b, Thread thread) {
  static thread_local std::vector<float> weights;
  const int64_t H = model.head_dim, N = model.heads, K = model.kv_heads, H_padded = padded(H, LANES);
  const float scale = 1.0f / std::sqrt(float(H));
  std::vector<float>& memory = weights;
  std::vector<float> y(H_padded);
  const Share share = thread.share(batch.rows * N);
  for (int64_t item = share.from; item < share.to; item++) {
    const int64_t row = item / N, head = item % N, kv = head / (N / K), n = batch.positions[row] + 1;
    const int32_t* table = table_of(batch, row);
    if (int64_t(memory.size()) < padded(n, BLOCK)) memory.resize(padded(2 * n, BLOCK));
    const float* wide = b.wide + row * b.wide_stride;
    const float* values = layer.values + kv * BLOCK * H_padded;
    const int64_t stride = K * BLOCK * H_padded;
    const float total = attention_weights(wide + head * H, layer.keys + kv * H * BLOCK, table, n, H, K * H * BLOCK,
                                          scale, memory.data());
    int64_t at = 0;
    for (; at + 8 * LANES <= H_padded; at += 8 * LANES)
      weighted_values<8>(memory.data(), total, values + at, table, n, H_padded, stride, y.data() + at);
    for (; at + 2 * LANES <= H_padded; at += 2 * LANES)
      weighted_values<2>(memory.data(), total, values + at, table, n, H_padded, stride, y.data() + at);
    for (; at < H_padded; at += LANES)
      weighted_values<1>(memory.data(), total, values + at, table, n, H_padded, stride, y.data() + at);
    float* to = b.mixed + row * b.mixed_stride + head * H;
    const float* gate = wide + (N + 2 * K + head) * H;
    for (int64_t h = 0; h < H; h += LANES)
      store(to + h, layer.gated ? load(&y[h]) * sigmoid(load(gate + h, H - h)) : load(&y[h]), H - h);
  }
}
