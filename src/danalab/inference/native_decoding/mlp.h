// The MLP of each row, dense or of the row's experts.

#pragma once

#include <algorithm>
#include <vector>

#include "model.h"

// hidden = act(up x) of some rows; a thread computes its share of the features of all rows.
inline void hidden_of(const Mlp& mlp, Activation activation, const float* x, int64_t x_stride, int64_t rows,
                      float* hidden, int64_t stride, Thread thread) {
  if (activation == Activation::swiglu) {
    constexpr int64_t PART = 8 * ROWS, MOST = 4;
    alignas(64) float both[PART * MOST * PANEL];  // panels of gate and up in turn
    const Share pairs = thread.share(mlp.up.panels() / 2);
    for (int64_t panel = 2 * pairs.from; panel < 2 * pairs.to; panel += MOST)
      for (int64_t from = 0; from < rows; from += PART) {
        const int64_t part = std::min(PART, rows - from), end = std::min(panel + MOST, 2 * pairs.to);
        multiply(mlp.up, Share(panel, end), x + from * x_stride, x_stride, part, both, MOST * PANEL);
        for (int64_t row = 0; row < part; row++)
          for (int64_t pair = 0; pair < (end - panel) / 2; pair++)
            for (int64_t at = 0; at < PANEL; at += LANES) {
              const float* gate = both + (row * MOST + 2 * pair) * PANEL + at;
              store(hidden + (from + row) * stride + (panel / 2 + pair) * PANEL + at, silu(load(gate)) * load(gate + PANEL));
            }
      }
    return;
  }
  const Share panels = thread.share(mlp.up.panels());
  multiply(mlp.up, panels, x, x_stride, rows, hidden + panels.from * PANEL, stride);
  for (int64_t row = 0; row < rows; row++)
    for (int64_t at = panels.from * PANEL; at < panels.to * PANEL; at += LANES) {
      float* h = hidden + row * stride + at;
      store(h, activation == Activation::gelu ? gelu(load(h)) : gelu_tanh(load(h)));
    }
}

// The experts of a row and their weights: the most likely ones, of equal ones the first.
inline void route(const Experts& experts, const float* logits, int32_t* chosen, float* weights) {
  const int64_t E = experts.count;
  float highest = logits[0], total = 0, kept = 0;
  for (int64_t e = 1; e < E; e++) highest = std::max(highest, logits[e]);
  for (int64_t e = 0; e < E; e++) total += std::exp(logits[e] - highest);
  for (int64_t i = 0; i < experts.chosen; i++) {
    int64_t best = -1;
    for (int64_t e = 0; e < E; e++) {
      if (std::find(chosen, chosen + i, int32_t(e)) != chosen + i) continue;
      if (best < 0 || logits[e] > logits[best]) best = e;
    }
    chosen[i] = int32_t(best);
    weights[i] = std::exp(logits[best] - highest) / total;
    kept += weights[i];
  }
  if (experts.renormalise)
    for (int64_t i = 0; i < experts.chosen; i++) weights[i] /= kept;
}

// added = the weighted sum of the experts of each row, and the shared expert; ends with a barrier.
inline void mix_experts(const Model& model, const Experts& experts, const Batch& batch, const Buffers& b, Thread thread) {
  const int64_t D = model.d_model, rows = batch.rows, C = experts.chosen, E = experts.count;
  multiply(experts.router, b.normed, b.d_stride, rows, b.wide, b.wide_stride, thread);
  thread.wait();
  Share share = thread.share(rows);
  for (int64_t row = share.from; row < share.to; row++)
    route(experts, b.wide + row * b.wide_stride, b.chosen + row * C, b.weights + row * C);
  thread.wait();
  // Copies of the rows, sorted by expert; every thread computes their places.
  std::vector<int64_t> ends(E, 0), place(rows * C);
  for (int64_t i = 0; i < rows * C; i++) ends[b.chosen[i]]++;
  for (int64_t e = 1; e < E; e++) ends[e] += ends[e - 1];
  std::vector<int64_t> next(E, 0);
  for (int64_t e = 1; e < E; e++) next[e] = ends[e - 1];
  for (int64_t i = 0; i < rows * C; i++) place[i] = next[b.chosen[i]]++;
  share = thread.share(rows * C);
  for (int64_t i = share.from; i < share.to; i++)
    std::memcpy(b.copies + place[i] * b.copies_stride, b.normed + i / C * b.d_stride, D * sizeof(float));
  thread.wait();
  for (int64_t e = 0, from = 0; e < E; from = ends[e++])
    if (ends[e] > from)
      hidden_of(experts.experts[e], model.activation, b.copies + from * b.copies_stride, b.copies_stride, ends[e] - from,
                b.hidden + from * b.hidden_stride, b.hidden_stride, thread);
  thread.wait();
  for (int64_t e = 0, from = 0; e < E; from = ends[e++])
    if (ends[e] > from)
      multiply(experts.experts[e].down, b.hidden + from * b.hidden_stride, b.hidden_stride, ends[e] - from,
               b.copies + from * b.copies_stride, b.copies_stride, thread);
  if (experts.has_shared) {
    thread.wait();
    hidden_of(experts.shared, model.activation, b.normed, b.d_stride, rows, b.hidden, b.hidden_stride, thread);
    thread.wait();
    multiply(experts.shared.down, b.hidden, b.hidden_stride, rows, b.added, b.d_stride, thread);
  }
  thread.wait();
  share = thread.share(rows);
  for (int64_t row = share.from; row < share.to; row++) {
    float* to = b.added + row * b.d_stride;
    float shared = experts.has_shared ? 1.0f : 0.0f;
    if (experts.shared_gate) {
      float logit = 0;
      for (int64_t d = 0; d < D; d++) logit += experts.shared_gate[d] * b.normed[row * b.d_stride + d];
      shared = 1.0f / (1.0f + std::exp(-logit));
    }
    for (int64_t d = 0; d < D; d++) {
      float total = 0;
      for (int64_t i = row * C; i < (row + 1) * C; i++) total += b.weights[i] * b.copies[place[i] * b.copies_stride + d];
      to[d] = experts.has_shared ? total + shared * to[d] : total;
    }
  }
  thread.wait();
}
