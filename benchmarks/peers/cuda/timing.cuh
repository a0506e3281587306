// What the programs here share: errors, copies to the device, and times of launches in a queue.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

#define CK(x)                                                                          \
  do {                                                                                 \
    cudaError_t e_ = (x);                                                              \
    if (e_ != cudaSuccess) {                                                           \
      printf("cuda error %s line %d\n", cudaGetErrorString(e_), __LINE__);             \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

// milliseconds of one launch: the median of `reps` times of `inner` launches in a row, after a first one
template <class F> double median(F launch, int reps = 7, int inner = 1) {
  cudaEvent_t a, b;
  CK(cudaEventCreate(&a));
  CK(cudaEventCreate(&b));
  launch();
  CK(cudaDeviceSynchronize());
  std::vector<float> times;
  for (int i = 0; i < reps; i++) {
    CK(cudaEventRecord(a));
    for (int k = 0; k < inner; k++) launch();
    CK(cudaEventRecord(b));
    CK(cudaEventSynchronize(b));
    float ms;
    CK(cudaEventElapsedTime(&ms, a, b));
    times.push_back(ms / inner);
  }
  CK(cudaGetLastError());
  std::sort(times.begin(), times.end());
  return times[reps / 2];
}

template <class T> T *put(const std::vector<T> &host) {
  T *device;
  CK(cudaMalloc(&device, host.size() * sizeof(T)));
  CK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

template <class T> std::vector<T> get(const T *device, size_t n) {
  std::vector<T> host(n);
  CK(cudaMemcpy(host.data(), device, n * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}
