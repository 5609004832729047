// Causal attention of whole rows in float32, forward and backward, on CPUs.
//
//     S = q k^T / sqrt(H),  P = softmax(S) over the keys start(i) ... i of query i,  y = P v
//     D = sum_h dy y,  dS = P (dy v^T - D) / sqrt(H),  dq = dS k,  dk = dS^T q,  dv = P^T dy
//
// Tri Dao's FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2) with whole rows of S for a block of queries: of the
// forward pass only y and the logarithms of the sums are kept. A thread takes heads, whole; all sums over keys, queries
// and heads of a group have a fixed order, so that a result does not depend on threads or on the rest of the batch.

#include <algorithm>
#include <vector>

#include "threads.h"
#include "vectors.h"

constexpr int COLUMNS = 2 * LANES;              // of a tile, in two vectors
constexpr int ROWS = LANES == 16 ? 12 : 6;      // of a tile: its sums fill most of the target's registers
constexpr int64_t QUERIES = 8 * ROWS;           // of a block; keys begin and end at multiples of it
constexpr int64_t KEYS = 2 * QUERIES;           // of a step backward: what it computes stays in the first cache
static_assert(QUERIES % ROWS == 0 && QUERIES % COLUMNS == 0, "blocks are whole tiles");

struct Rows {  // [B][L][heads][H], each feature next to the other
  float* data;
  int64_t batch, row, head;  // strides
  float* at(int64_t b, int64_t n) const { return data + b * batch + n * head; }
};

struct Task {
  Rows q, k, v, y, dy, dq, dk, dv;
  float* sums;            // [B][N][L]: logarithms of the sums of e^S
  const int64_t* starts;  // [B][L]: the first key of each query, or null: 0
  int64_t batch, heads, kv_heads, length, features;
};

// C [rows][columns] = (or +=) A B; A's element (m, k) is a[m * row + k * column].
template <bool ADD>
static void multiply(int64_t rows, int64_t columns, int64_t inner, const float* a, int64_t row, int64_t column,
                     const float* b, int64_t b_stride, float* c, int64_t c_stride) {
  for (int64_t j = 0; j < columns; j += COLUMNS)
    for (int64_t i = 0; i < rows; i += ROWS) {
      Vector low[ROWS], high[ROWS];
      float* to = c + i * c_stride + j;
      for (int m = 0; m < ROWS; m++) {
        low[m] = ADD ? load(to + m * c_stride) : Vector{};
        high[m] = ADD ? load(to + m * c_stride + LANES) : Vector{};
      }
      const float* from = a + i * row;
      const float* with = b + j;
      for (int64_t k = 0; k < inner; k++, from += column, with += b_stride) {
        Vector first = load(with), second = load(with + LANES);
        keep_in_register(first);
        keep_in_register(second);
        for (int m = 0; m < ROWS; m++) {
          const Vector x = all(from[m * row]);
          low[m] += x * first;
          high[m] += x * second;
        }
      }
      for (int m = 0; m < ROWS; m++) {
        store(to + m * c_stride, low[m]);
        store(to + m * c_stride + LANES, high[m]);
      }
    }
}

// Memory of one thread, and the keys and values of one head in it, padded by zeros.
struct Memory {
  int64_t L, H;  // padded
  float *k, *v, *k_columns, *v_columns, *q, *dy, *y, *scores, *slopes, *dk, *dv;

  Memory(int64_t length, int64_t features, bool backward)
      : L(padded(length, QUERIES)), H(padded(features, COLUMNS)) {
    static thread_local std::vector<float> storage;  // grows to the longest row
    const int64_t size = (backward ? 6 : 3) * L * H + 3 * QUERIES * H + QUERIES * (backward ? 2 * KEYS : L);
    if (int64_t(storage.size()) < size) storage.resize(size);
    float* at = storage.data();
    const auto take = [&](int64_t count) { return at += count, at - count; };
    k = take(L * H), v = take(L * H), k_columns = take(L * H);
    q = take(QUERIES * H), dy = take(QUERIES * H), y = take(QUERIES * H);
    scores = take(QUERIES * (backward ? KEYS : L));
    if (backward) v_columns = take(L * H), dk = take(L * H), dv = take(L * H), slopes = take(QUERIES * KEYS);
  }
};

static void copy_in(const Rows& from, int64_t b, int64_t n, int64_t first, int64_t count, int64_t rows, int64_t H,
                    int64_t H_padded, float scale, float* to) {
  const float* x = from.at(b, n) + first * from.row;
  for (int64_t i = 0; i < count; i++, x += from.row, to += H_padded) {
    for (int64_t h = 0; h < H; h++) to[h] = x[h] * scale;
    std::fill(to + H, to + H_padded, 0.0f);
  }
  std::fill(to, to + (rows - count) * H_padded, 0.0f);
}

static void copy_out(const float* from, int64_t H_padded, int64_t count, int64_t H, const Rows& to, int64_t b,
                     int64_t n, int64_t first) {
  float* y = to.at(b, n) + first * to.row;
  for (int64_t i = 0; i < count; i++, y += to.row, from += H_padded) std::copy(from, from + H, y);
}

static void transpose(const float* from, int64_t rows, int64_t columns, float* to) {
  for (int64_t j = 0; j < columns; j++)
    for (int64_t i = 0; i < rows; i++) to[j * rows + i] = from[i * columns + j];
}

struct Block {
  int64_t first, count;  // queries
  int64_t low, keys;     // the first key of a query and those from it on, in whole blocks

  Block(const Task& task, int64_t b, int64_t first)
      : first(first), count(std::min(QUERIES, task.length - first)), low(first) {
    for (int64_t i = 0; i < count; i++) low = std::min(low, start(task, b, i));
    low = low / QUERIES * QUERIES;
    keys = first + QUERIES - low;
  }
  int64_t start(const Task& task, int64_t b, int64_t i) const {
    return task.starts ? task.starts[b * task.length + first + i] : 0;
  }
};

// Which keys a query has, of the vector of keys from `at` on.
struct Keys {
  int32_t start, last;
  Integers lane;
  Keys(const Task& task, const Block& block, int64_t b, int64_t i)
      : start(int32_t(i < block.count ? block.start(task, b, i) : 0)),
        last(int32_t(i < block.count ? block.first + i : -1)) {
    for (int l = 0; l < LANES; l++) lane[l] = l;
  }
  Integers from(int64_t at) const { return (lane + int32_t(at) <= last) & (lane + int32_t(at) >= start); }
};

static Vector where(Integers mask, Vector x, Vector otherwise) {
  return as_floats(((Integers)x & mask) | ((Integers)otherwise & ~mask));
}

static void forward_head(const Task& task, const Memory& m, int64_t b, int64_t n) {
  const float scale = 1.0f / std::sqrt(float(task.features));
  float* sums = task.sums + (b * task.heads + n) * task.length;
  for (int64_t first = 0; first < task.length; first += QUERIES) {
    const Block block(task, b, first);
    copy_in(task.q, b, n, first, block.count, QUERIES, task.features, m.H, scale, m.q);
    multiply<false>(QUERIES, block.keys, task.features, m.q, m.H, 1, m.k_columns + block.low, m.L, m.scores, m.L);
    float totals[QUERIES];
    for (int64_t i = 0; i < QUERIES; i++) {
      float* row = m.scores + i * m.L;
      const Keys keys(task, block, b, i);
      Vector highest = all(-INFINITY), total = {};
      for (int64_t at = 0; at < block.keys; at += LANES) {
        const Vector s = where(keys.from(block.low + at), load(row + at), all(-INFINITY));
        highest = s > highest ? s : highest;
      }
      const float most = largest(highest);
      for (int64_t at = 0; at < block.keys; at += LANES) {
        const Vector e = where(keys.from(block.low + at), exponential(load(row + at) - most), Vector{});
        total += e;
        store(row + at, e);
      }
      totals[i] = sum(total);
      if (i < block.count) sums[first + i] = most + std::log(totals[i]);
    }
    multiply<false>(QUERIES, m.H, block.keys, m.scores, m.L, 1, m.v + block.low * m.H, m.H, m.y, m.H);
    for (int64_t i = 0; i < block.count; i++)
      for (int64_t h = 0; h < m.H; h += LANES) store(m.y + i * m.H + h, load(m.y + i * m.H + h) / totals[i]);
    copy_out(m.y, m.H, block.count, task.features, task.y, b, n, first);
  }
}

static void backward_head(const Task& task, const Memory& m, int64_t b, int64_t n) {
  const float scale = 1.0f / std::sqrt(float(task.features));
  const float* sums = task.sums + (b * task.heads + n) * task.length;
  for (int64_t first = 0; first < task.length; first += QUERIES) {
    const Block block(task, b, first);
    copy_in(task.q, b, n, first, block.count, QUERIES, task.features, m.H, scale, m.q);
    copy_in(task.dy, b, n, first, block.count, QUERIES, task.features, m.H, 1.0f, m.dy);
    copy_in(task.y, b, n, first, block.count, QUERIES, task.features, m.H, 1.0f, m.y);
    float means[QUERIES];
    for (int64_t i = 0; i < QUERIES; i++) {
      Vector both = {};
      for (int64_t h = 0; h < m.H; h += LANES) both += load(m.dy + i * m.H + h) * load(m.y + i * m.H + h);
      means[i] = sum(both);
    }
    std::fill(m.y, m.y + QUERIES * m.H, 0.0f);  // from here on dq
    for (int64_t low = block.low; low < block.low + block.keys; low += KEYS) {
      const int64_t count = std::min(KEYS, block.low + block.keys - low);
      multiply<false>(QUERIES, count, task.features, m.q, m.H, 1, m.k_columns + low, m.L, m.scores, KEYS);
      multiply<false>(QUERIES, count, task.features, m.dy, m.H, 1, m.v_columns + low, m.L, m.slopes, KEYS);
      for (int64_t i = 0; i < QUERIES; i++) {
        const Keys keys(task, block, b, i);
        const float logarithm = i < block.count ? sums[first + i] : 0.0f;
        float *row = m.scores + i * KEYS, *slopes = m.slopes + i * KEYS;
        for (int64_t at = 0; at < count; at += LANES) {
          const Integers mask = keys.from(low + at);
          const Vector p = where(mask, exponential(load(row + at) - logarithm), Vector{});
          store(row + at, p);
          store(slopes + at, where(mask, p * (load(slopes + at) - means[i]), Vector{}));
        }
      }
      multiply<true>(count, m.H, QUERIES, m.scores, 1, KEYS, m.dy, m.H, m.dv + low * m.H, m.H);
      multiply<true>(count, m.H, QUERIES, m.slopes, 1, KEYS, m.q, m.H, m.dk + low * m.H, m.H);  // q has the scale
      multiply<true>(QUERIES, m.H, count, m.slopes, KEYS, 1, m.k + low * m.H, m.H, m.y, m.H);
    }
    for (int64_t at = 0; at < QUERIES * m.H; at += LANES) store(m.y + at, load(m.y + at) * scale);
    copy_out(m.y, m.H, block.count, task.features, task.dq, b, n, first);
  }
}

template <bool BACKWARD>
static void run(const Task& task, int threads) {
  const int64_t items = task.batch * task.kv_heads, group = task.heads / task.kv_heads;
  in_parallel(int(std::min<int64_t>(threads, items)), [&](int me, int all_threads) {
    const Share share(items, me, all_threads);
    const Memory m(task.length, task.features, BACKWARD);
    for (int64_t item = share.from; item < share.to; item++) {
      const int64_t b = item / task.kv_heads, kv = item % task.kv_heads;
      copy_in(task.k, b, kv, 0, task.length, m.L, task.features, m.H, 1.0f, m.k);
      copy_in(task.v, b, kv, 0, task.length, m.L, task.features, m.H, 1.0f, m.v);
      transpose(m.k, m.L, m.H, m.k_columns);
      if (BACKWARD) {
        transpose(m.v, m.L, m.H, m.v_columns);
        std::fill(m.dk, m.dk + m.L * m.H, 0.0f);
        std::fill(m.dv, m.dv + m.L * m.H, 0.0f);
      }
      for (int64_t n = kv * group; n < (kv + 1) * group; n++)
        BACKWARD ? backward_head(task, m, b, n) : forward_head(task, m, b, n);
      if (BACKWARD) {
        copy_out(m.dk, m.H, task.length, task.features, task.dk, b, kv, 0);
        copy_out(m.dv, m.H, task.length, task.features, task.dv, b, kv, 0);
      }
    }
  });
}

extern "C" void forward(const Task* task, int threads) { run<false>(*task, threads); }

extern "C" void backward(const Task* task, int threads) { run<true>(*task, threads); }
