// One token from each row of logits: the most likely one, or one drawn by inverting the cumulative distribution.

#pragma once

#include <cfloat>

#include "vectors.h"

// (token, its log-probability); token -1 where the logits are not finite. `point` in [0, 1) chooses the token.
inline void draw_one(const float* logits, int64_t n, float temperature, double point, int32_t* token, float* logprob) {
  const int64_t whole = n / LANES * LANES;
  Vector highest_of = all(-INFINITY);
  for (int64_t i = 0; i < whole; i += LANES) {
    const Vector x = load(logits + i);
    highest_of = x > highest_of ? x : highest_of;
  }
  float highest = largest(highest_of);
  for (int64_t i = whole; i < n; i++) highest = logits[i] > highest ? logits[i] : highest;
  const float scale = temperature == 0.0f ? 1.0f : temperature;
  const auto weights = [&](int64_t from) {
    Vector x = all(-INFINITY);
    for (int64_t i = from; from == whole && i < n; i++) x[i - from] = logits[i];
    if (from < whole) x = load(logits + from);
    return exponential((x - highest) / scale);
  };
  // The end's empty lanes have e^-87 each.
  double total = 0;
  for (int64_t i = 0; i < n; i += LANES) total += double(sum(weights(i)));
  if (!std::isfinite(highest) || !std::isfinite(total)) {
    *token = -1;
    *logprob = NAN;
    return;
  }
  int64_t found = 0;
  if (temperature == 0.0f) {
    while (logits[found] != highest) found++;
  } else {
    const double target = point * total;
    double before = 0;
    for (int64_t i = 0; i < n; i += LANES) {
      const Vector w = weights(i);
      const double part = double(sum(w));
      found = i;
      if (before + part > target || i + LANES >= n) {
        const int64_t last = (n - i < LANES ? n - i : LANES) - 1;
        int64_t lane = 0;
        for (double at = before + double(w[0]); at <= target && lane < last; at += double(w[lane])) lane++;
        found = i + lane;
        break;
      }
      before += part;
    }
  }
  *token = int32_t(found);
  *logprob = (logits[found] - highest) / scale - float(std::log(total));
}
