// Threads: OpenMP's, which torch shares, where the library is built with it; else threads of its own.

#pragma once

#ifdef _OPENMP
#include <omp.h>
#else
#include <functional>
#include <thread>
#include <vector>
#endif

// work(me, all) by at most `threads` threads at the same time; they may wait for each other.
template <class Work>
inline void in_parallel(int threads, const Work& work) {
  if (threads < 2) return work(0, 1);
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  work(omp_get_thread_num(), omp_get_num_threads());
#else
  std::vector<std::thread> others;
  for (int me = 1; me < threads; me++) others.emplace_back(std::cref(work), me, threads);
  work(0, threads);
  for (std::thread& each : others) each.join();
#endif
}
