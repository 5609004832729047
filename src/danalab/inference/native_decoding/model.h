// The model, the batch and the buffers, as `layout.py` lays them out.

#pragma once

#include <atomic>
#include <thread>

#include "matmul.h"

struct Norm {
  const float* gain;   // null: no norm
  const float* shift;  // or null
  float eps;
  int32_t centred;  // LayerNorm: subtract the mean

  void apply(const float* x, float* y, int64_t n) const {
    const float mean = centred ? sum(x, n) / float(n) : 0.0f;
    const float scale = 1.0f / std::sqrt(sum_of_squares(x, n, mean) / float(n) + eps);
    for (int64_t i = 0; i < n; i++) {
      const float normed = (x[i] - mean) * scale * gain[i];
      y[i] = shift ? normed + shift[i] : normed;
    }
  }
};

enum class Mixer : int32_t { attention, delta_rule, oscillators };
enum class Activation : int32_t { gelu, gelu_tanh, swiglu };

// down(act(up x)); with swiglu the panels of gate and up alternate in `up`.
struct Mlp {
  Matrix up, down;
};

struct Experts {
  const Mlp* experts;
  Matrix router;
  Mlp shared;
  const float* shared_gate;  // [D], or null
  int32_t count, chosen, renormalise, has_shared;
};

struct Layer {
  Norm mixer_norm, mlp_norm;
  Matrix in, out;  // all maps of the mixer's input, joined
  Mlp mlp;
  const Experts* experts;  // null: the dense MLP
  Norm head_norm_q, head_norm_k;  // of queries and keys; of the outputs of the delta rule (q)
  float *keys, *values;           // [blocks][K][H][16], [blocks][K][16][H rounded up]
  float* state;                   // [slots][state_size]
  const float* taps;              // [size][channels] of short convolutions, the lag 0 last, or null
  const float *first, *second;    // delta rule: -A and dt; oscillators: poles and amplitudes, [2][R][D rounded up]
  const float* through;           // oscillators: d
  int64_t state_size;
  Mixer mixer;
  int32_t gated;  // attention: the output is multiplied by sigmoid(gate x)
  int32_t taps_size, modes;
  int32_t key_heads, value_heads, key_dim, value_dim;  // delta rule
};

struct Model {
  const Layer* layers;
  const float *embedding, *positions;  // [V][D]; [T][D] or null
  const float* rotary;                 // [T][pairs][2], or null
  Norm final_norm;
  Matrix head;
  int32_t n_layers, d_model, heads, kv_heads, head_dim, pairs;
  Activation activation;
  float residual_scale;
};

struct Batch {
  const int32_t *tokens, *positions, *sequence_of;  // of each row
  const int32_t *first, *slots;                     // of each sequence: its first row (and the end), its slot
  const int32_t* tables;                            // [slots][table_width]: blocks
  const int32_t* outputs;                           // rows whose logits are wanted
  float* logits;
  int32_t rows, sequences, n_outputs, table_width;
};

struct Buffers {
  float *x, *normed;  // [rows][D rounded up]
  float *wide;        // results of joined maps, [rows][wide_stride]
  float *mixed;       // input of the mixer's last map
  float *hidden;      // input of the MLP's last map
  float *added;       // what is added to x
  float *copies;      // experts: rows sorted by expert, and their results
  float *weights;     // experts: [rows][chosen]
  int32_t *chosen;    // experts: [rows][chosen]
  int64_t d_stride, wide_stride, mixed_stride, hidden_stride, copies_stride;
};

// Threads wait for each other some fifty times in a step, mostly for less than a microsecond: they spin, and give way
// only when others need the cores.
class Barrier {
  std::atomic<int> arrived{0}, phase{0};

 public:
  void wait(int all) {
    if (all == 1) return;
    const int now = phase.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == all) {
      arrived.store(0, std::memory_order_relaxed);
      phase.store(now + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase.load(std::memory_order_acquire) == now;)
      if (++spins > SPINS) std::this_thread::yield();
  }

 private:
  static constexpr int SPINS = 20000;
};

// One thread of a step.
struct Thread {
  int me, all;
  Barrier* barrier;
  Share share(int64_t n) const { return Share(n, me, all); }
  void wait() const { barrier->wait(all); }
};

// y = W x by all threads, no barrier after it.
inline void multiply(const Matrix& matrix, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
                     Thread thread) {
  const Share panels = thread.share(matrix.panels());
  multiply(matrix, panels, x, x_stride, rows, y + panels.from * PANEL, y_stride);
}
