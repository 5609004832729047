// Mixers with a state of constant size: oscillators and the gated delta rule, token by token, also for prompts.
//
// A sequence that starts at position 0 starts with a state of zeros. The tokens of a sequence come one after another;
// sequences, and channels or heads of one sequence, are shared among threads.

#pragma once

#include <algorithm>

#include "model.h"

// A short causal convolution of at most LANES channels from `from` on of one sequence, in place; the state has the last inputs.
inline void convolve(const Layer& layer, const Batch& batch, const Buffers& b, int64_t sequence, int64_t from, int64_t n,
                     int64_t channels, bool activate) {
  const int64_t size = layer.taps_size;
  float* last = layer.state + int64_t(batch.slots[sequence]) * layer.state_size;  // [size - 1][channels], oldest first
  for (int64_t row = batch.first[sequence]; row < batch.first[sequence + 1]; row++) {
    float* x = b.wide + row * b.wide_stride + from;
    const auto tap = [&](int64_t place) { return load(layer.taps + place * channels + from, n); };
    const auto state = [&](int64_t place) { return last + place * channels + from; };
    const Vector now = load(x, n);
    Vector y = now * tap(size - 1);
    for (int64_t place = size - 2; place >= 0; place--) y += load(state(place), n) * tap(place);
    for (int64_t place = 0; place + 2 < size; place++) store(state(place), load(state(place + 1), n), n);
    if (size > 1) store(state(size - 2), now, n);
    store(x, activate ? silu(y) : y, n);
  }
}

inline void start_states(const Layer& layer, const Batch& batch, Thread thread) {
  const Share share = thread.share(batch.sequences);
  for (int64_t s = share.from; s < share.to; s++)
    if (batch.positions[batch.first[s]] == 0)
      std::fill_n(layer.state + int64_t(batch.slots[s]) * layer.state_size, layer.state_size, 0.0f);
}

// silu(g) * (d u + Re sum_r c_r s_r),   s_r <- pole_r s_r + u;   wide: [u | g]; state: taps, then [2][R][D rounded up].
inline void oscillate(const Model& model, const Layer& layer, const Batch& batch, const Buffers& b, Thread thread) {
  const int64_t D = model.d_model, D_padded = padded(D, LANES), R = layer.modes, parts = D_padded / LANES;
  const int64_t taps = layer.taps ? (layer.taps_size - 1) * D : 0;
  const Share share = thread.share(batch.sequences * parts);
  for (int64_t item = share.from; item < share.to; item++) {
    const int64_t sequence = item / parts, from = item % parts * LANES, n = std::min<int64_t>(LANES, D - from);
    if (layer.taps) convolve(layer, batch, b, sequence, from, n, D, false);
    float* real = layer.state + int64_t(batch.slots[sequence]) * layer.state_size + taps + from;
    float* imaginary = real + R * D_padded;
    for (int64_t row = batch.first[sequence]; row < batch.first[sequence + 1]; row++) {
      const float* u_row = b.wide + row * b.wide_stride;
      const Vector u = load(u_row + from, n), g = load(u_row + D + from, n);
      Vector y = u;
      if (R) {
        Vector total = {};
        for (int64_t r = 0; r < R; r++) {
          const int64_t at = r * D_padded, second = (R + r) * D_padded + from;
          const Vector s_re = load(real + at), s_im = load(imaginary + at);
          const Vector p_re = load(layer.first + at + from), p_im = load(layer.first + second);
          const Vector re = p_re * s_re - p_im * s_im + u, im = p_re * s_im + p_im * s_re;
          store(real + at, re);
          store(imaginary + at, im);
          total += load(layer.second + at + from) * re - load(layer.second + second) * im;
        }
        y = total + load(layer.through + from) * u;
      }
      y *= silu(g);
      store(b.mixed + row * b.mixed_stride + from, y, n);
    }
  }
}

// wide: [q | k | v | z | write | decay], q and k of key heads, the others of value heads.
inline void convolve_delta(const Layer& layer, const Batch& batch, const Buffers& b, Thread thread) {
  const int64_t channels = 2 * layer.key_heads * layer.key_dim + layer.value_heads * layer.value_dim;
  const int64_t parts = padded(channels, LANES) / LANES;
  const Share share = thread.share(batch.sequences * parts);
  for (int64_t item = share.from; item < share.to; item++) {
    const int64_t from = item % parts * LANES, n = std::min<int64_t>(LANES, channels - from);
    convolve(layer, batch, b, item / parts, from, n, channels, true);
  }
}

inline float inverse_length(const float* x, int64_t n) { return 1.0f / std::sqrt(sum_of_squares(x, n, 0.0f) + 1e-6f); }

// S <- e^g S + k b (v - e^g S^T k)^T,   o = S^T q;   y = norm(o) * silu(z); state: taps, then [heads][K][V].
inline void apply_delta_rule(const Layer& layer, const Batch& batch, const Buffers& b, Thread thread) {
  const int64_t K = layer.key_dim, V = layer.value_dim, heads = layer.value_heads, keys = layer.key_heads * K;
  const int64_t values = heads * V, taps = (layer.taps_size - 1) * (2 * keys + values);
  std::vector<float> error(V), o(V);
  const Share share = thread.share(batch.sequences * heads);
  for (int64_t item = share.from; item < share.to; item++) {
    const int64_t sequence = item / heads, head = item % heads, key_head = head / (heads / layer.key_heads);
    float* state = layer.state + int64_t(batch.slots[sequence]) * layer.state_size + taps + head * K * V;
    for (int64_t row = batch.first[sequence]; row < batch.first[sequence + 1]; row++) {
      const float* wide = b.wide + row * b.wide_stride;
      const float *q = wide + key_head * K, *k = q + keys, *v = wide + 2 * keys + head * V, *z = v + values;
      const float write = wide[2 * keys + 2 * values + head], forget = wide[2 * keys + 2 * values + heads + head];
      const float a = forget + layer.second[head];
      const float decay = std::exp(layer.first[head] * (a > 20.0f ? a : std::log1p(std::exp(a))));
      const float share_stored = 1.0f / (1.0f + std::exp(-write));
      const float q_scale = inverse_length(q, K) / std::sqrt(float(K)), k_scale = inverse_length(k, K);
      std::fill(error.begin(), error.end(), 0.0f);
      std::fill(o.begin(), o.end(), 0.0f);
      for (int64_t i = 0; i < K; i++) {
        const float key = k[i] * k_scale;
        float* s = state + i * V;
        for (int64_t j = 0; j < V; j++) {
          s[j] *= decay;
          error[j] += key * s[j];
        }
      }
      for (int64_t j = 0; j < V; j++) error[j] = share_stored * (v[j] - error[j]);
      for (int64_t i = 0; i < K; i++) {
        const float key = k[i] * k_scale, query = q[i] * q_scale;
        float* s = state + i * V;
        for (int64_t j = 0; j < V; j++) {
          s[j] += key * error[j];
          o[j] += query * s[j];
        }
      }
      layer.head_norm_q.apply(o.data(), o.data(), V);
      float* to = b.mixed + row * b.mixed_stride + head * V;
      for (int64_t j = 0; j < V; j += LANES) store(to + j, load(&o[j], V - j) * silu(load(z + j, V - j)), V - j);
    }
  }
}
