// One step of decoding: hidden states and logits of new tokens of several sequences, all layers in one call.
//
// Threads share the work of each phase and meet at barriers. What is computed for a row depends on that row and on its
// own sequence's cache only, always in the same order: neither the batch nor the number of threads changes a bit.
// Built once per machine and loaded through ctypes: plain C interface, no Python or torch headers.

#include "attention.h"
#include "mlp.h"
#include "recurrent.h"
#include "sampling.h"
#include "threads.h"

namespace {

void embed(const Model& model, const Batch& batch, const Buffers& b, Thread thread) {
  const int64_t D = model.d_model;
  const Share share = thread.share(batch.rows);
  for (int64_t row = share.from; row < share.to; row++) {
    const float* token = model.embedding + batch.tokens[row] * D;
    const float* position = model.positions ? model.positions + batch.positions[row] * D : nullptr;
    for (int64_t d = 0; d < D; d++) b.x[row * b.d_stride + d] = position ? token[d] + position[d] : token[d];
  }
}

// normed = norm(x) of each row.
void normalise(const Model& model, const Norm& norm, const Batch& batch, const Buffers& b, Thread thread) {
  const Share share = thread.share(batch.rows);
  for (int64_t row = share.from; row < share.to; row++)
    norm.apply(b.x + row * b.d_stride, b.normed + row * b.d_stride, model.d_model);
}

// x <- x + residual_scale W y, a share of the features of all rows.
void add_product(const Model& model, const Matrix& matrix, const float* y, int64_t y_stride, const Batch& batch,
                 const Buffers& b, Thread thread) {
  const Share panels = thread.share(matrix.panels());
  multiply(matrix, panels, y, y_stride, batch.rows, b.added + panels.from * PANEL, b.d_stride);
  for (int64_t row = 0; row < batch.rows; row++)
    for (int64_t at = row * b.d_stride + panels.from * PANEL; at < row * b.d_stride + panels.to * PANEL; at += LANES)
      store(b.x + at, load(b.x + at) + model.residual_scale * load(b.added + at));
}

void mix(const Model& model, const Layer& layer, const Batch& batch, const Buffers& b, Thread thread) {
  switch (layer.mixer) {
    case Mixer::attention:
      prepare_heads(model, layer, batch, b, thread);
      thread.wait();
      attend(model, layer, batch, b, thread);
      break;
    case Mixer::delta_rule:
      convolve_delta(layer, batch, b, thread);
      thread.wait();
      apply_delta_rule(layer, batch, b, thread);
      break;
    case Mixer::oscillators:
      oscillate(model, layer, batch, b, thread);
      break;
  }
}

void compute(const Model& model, const Batch& batch, const Buffers& b, Thread thread) {
  embed(model, batch, b, thread);
  for (int64_t i = 0; i < model.n_layers; i++)
    if (model.layers[i].state) start_states(model.layers[i], batch, thread);
  thread.wait();
  for (int64_t i = 0; i < model.n_layers; i++) {
    const Layer& layer = model.layers[i];
    normalise(model, layer.mixer_norm, batch, b, thread);
    thread.wait();
    multiply(layer.in, b.normed, b.d_stride, batch.rows, b.wide, b.wide_stride, thread);
    thread.wait();
    mix(model, layer, batch, b, thread);
    thread.wait();
    add_product(model, layer.out, b.mixed, b.mixed_stride, batch, b, thread);
    thread.wait();
    normalise(model, layer.mlp_norm, batch, b, thread);
    thread.wait();
    if (layer.experts) {
      mix_experts(model, *layer.experts, batch, b, thread);
      const Share share = thread.share(batch.rows);
      for (int64_t at = share.from * b.d_stride; at < share.to * b.d_stride; at++)
        b.x[at] += model.residual_scale * b.added[at];
    } else {
      hidden_of(layer.mlp, model.activation, b.normed, b.d_stride, batch.rows, b.hidden, b.hidden_stride, thread);
      thread.wait();
      add_product(model, layer.mlp.down, b.hidden, b.hidden_stride, batch, b, thread);
    }
    thread.wait();
  }
  const Share share = thread.share(batch.n_outputs);
  for (int64_t i = share.from; i < share.to; i++)
    model.final_norm.apply(b.x + batch.outputs[i] * b.d_stride, b.normed + i * b.d_stride, model.d_model);
  thread.wait();
  multiply(model.head, b.normed, b.d_stride, batch.n_outputs, batch.logits, model.head.width(), thread);
}

}  // namespace

extern "C" void step(const Model* model, const Batch* batch, const Buffers* buffers, int threads) {
  Barrier barrier;
  in_parallel(threads, [&](int me, int all) { compute(*model, *batch, *buffers, Thread{me, all, &barrier}); });
}

// A token of each of `rows` rows of n logits; temperature 0: the most likely one.
extern "C" void draw(const float* logits, int64_t stride, int64_t n, int64_t rows, const float* temperatures,
                     const double* points, int32_t* tokens, float* logprobs, int threads) {
  in_parallel(rows * n > 100000 ? std::min<int64_t>(threads, rows) : 1, [&](int me, int all) {
    const Share share(rows, me, all);
    for (int64_t row = share.from; row < share.to; row++)
      draw_one(logits + row * stride, n, temperatures[row], points[row], tokens + row, logprobs + row);
  });
}

// Sizes, so that layout.py can check that it describes the same structures, and arrange weights for this target.
extern "C" void sizes(int64_t* to) {
  const int64_t found[] = {sizeof(Matrix), sizeof(Norm),  sizeof(Mlp),   sizeof(Experts), sizeof(Layer),
                           sizeof(Model),  sizeof(Batch), sizeof(Buffers), PANEL,         LANES};
  std::copy(std::begin(found), std::end(found), to);
}
