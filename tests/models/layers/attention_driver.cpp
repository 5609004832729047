// The attention kernel against plain loops in double precision, for any target; exit code 1 where they differ.

#include <cstdio>
#include <random>

#include "attention.cpp"

static Rows rows(std::vector<float>& x, int64_t heads, int64_t length, int64_t features) {
  return {x.data(), length * heads * features, heads * features, features};
}

static int compare(const char* name, const std::vector<float>& found, const std::vector<double>& expected) {
  double largest = 0, error = 0;
  for (size_t i = 0; i < found.size(); i++) {
    largest = std::max(largest, std::fabs(expected[i]));
    error = std::max(error, std::fabs(found[i] - expected[i]));
  }
  if (error <= 1e-5 * largest) return 0;
  std::printf("%s: error %g of %g\n", name, error, largest);
  return 1;
}

int main() {
  const int64_t B = 2, N = 4, K = 2, L = 205, H = 20;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> q(B * L * N * H), k(B * L * K * H), v(k.size()), dy(q.size()), sums(B * N * L);
  for (auto* x : {&q, &k, &v, &dy})
    for (float& each : *x) each = normal(random);
  std::vector<float> y(q.size()), dq(q.size()), dk(k.size()), dv(k.size());
  std::vector<int64_t> starts(B * L);
  for (int64_t i = 0; i < B * L; i++) starts[i] = i % L < 70 ? 0 : (i % L < 71 ? 70 : 71);
  const Task task{rows(q, N, L, H), rows(k, K, L, H), rows(v, K, L, H), rows(y, N, L, H),
                  rows(dy, N, L, H), rows(dq, N, L, H), rows(dk, K, L, H), rows(dv, K, L, H),
                  sums.data(), starts.data(), B, N, K, L, H};
  forward(&task, 3);
  backward(&task, 3);

  std::vector<double> y_(q.size()), dq_(q.size()), dk_(k.size()), dv_(k.size());
  for (int64_t b = 0; b < B; b++)
    for (int64_t n = 0; n < N; n++)
      for (int64_t i = 0; i < L; i++) {
        const int64_t query = ((b * L + i) * N + n) * H, first = starts[b * L + i];
        const auto key = [&](int64_t j) { return ((b * L + j) * K + n / (N / K)) * H; };
        std::vector<double> p(L), slope(L);
        double total = 0, mean = 0;
        for (int64_t j = first; j <= i; j++) {
          for (int64_t h = 0; h < H; h++) {
            p[j] += double(q[query + h]) * k[key(j) + h] / std::sqrt(double(H));
            slope[j] += double(dy[query + h]) * v[key(j) + h];
          }
          total += p[j] = std::exp(p[j]);
        }
        for (int64_t j = first; j <= i; j++) mean += (p[j] /= total) * slope[j];
        for (int64_t j = first; j <= i; j++)
          for (int64_t h = 0; h < H; h++) {
            const double ds = p[j] * (slope[j] - mean) / std::sqrt(double(H));
            y_[query + h] += p[j] * v[key(j) + h];
            dq_[query + h] += ds * k[key(j) + h];
            dk_[key(j) + h] += ds * q[query + h];
            dv_[key(j) + h] += p[j] * dy[query + h];
          }
      }
  return compare("y", y, y_) | compare("dq", dq, dq_) | compare("dk", dk, dk_) | compare("dv", dv, dv_);
}
