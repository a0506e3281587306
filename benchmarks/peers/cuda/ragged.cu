// Ragged rows by hand: for each row i, a = sin(a) + w[j] * x[col[j]] over j in ptr[i] .. ptr[i+1]; forward, and reverse by
// w and x. Prints JSON (ms).
//   plain     one thread a row; with U > 1 the loads of U iterations are in flight (stores do not alias loads)
//   staged    what depends on j alone is evaluated by the whole warp over the union of its lanes' rows, coalesced, into
//             shared memory; the recurrence reads from there; in reverse what is added per j goes back the same way. A
//             warp whose union is larger than the staging area takes the plain path.
#include "timing.cuh"
#include <random>

struct Args { const int *ptr, *col; const float *w, *x; float *y, *gw, *gx, *st; int n; };

template <bool GRAD, int U> __device__ __forceinline__ void row(const Args &q, int i, float *__restrict__ st) {
  const int *__restrict__ col = q.col; const float *__restrict__ w = q.w, *__restrict__ x = q.x; float *__restrict__ gw = q.gw;
  int lo = q.ptr[i], hi = q.ptr[i + 1], j = lo, d = 0; float a = .5f, g = 1;
  for (; j + U <= hi; j += U) { float h[U];
#pragma unroll
    for (int u = 0; u < U; u++) h[u] = __ldg(w + j + u) * __ldg(x + __ldg(col + j + u));
#pragma unroll
    for (int u = 0; u < U; u++) { if (GRAD) st[32 * d++] = a; a = __sinf(a) + h[u]; } }
  for (; j < hi; j++) { if (GRAD) st[32 * d++] = a; a = __sinf(a) + __ldg(w + j) * __ldg(x + __ldg(col + j)); }
  if (!GRAD) { q.y[i] = a; return; }
  while (j - U >= lo) { j -= U; d -= U; int c[U]; float wv[U], xv[U], s[U];
#pragma unroll
    for (int u = 0; u < U; u++) c[u] = __ldg(col + j + u), wv[u] = __ldg(w + j + u), s[u] = st[32 * (d + u)], xv[u] = __ldg(x + c[u]);
#pragma unroll
    for (int u = U - 1; u >= 0; u--) { gw[j + u] = g * xv[u]; atomicAdd(q.gx + c[u], g * wv[u]); g *= __cosf(s[u]); } }
  while (j > lo) { j--; int c = __ldg(col + j); float xv = __ldg(x + c), wv = __ldg(w + j); gw[j] = g * xv; atomicAdd(q.gx + c, g * wv); g *= __cosf(st[32 * --d]); } }
template <bool GRAD, int U> __global__ void plain(Args q) { int warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5; float *st = q.st + (size_t)warp * 256 * 32 + (threadIdx.x & 31);
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < q.n; i += gridDim.x * blockDim.x) row<GRAD, U>(q, i, st); }

template <bool GRAD, int CAP> __global__ void staged(Args q) { extern __shared__ float sh[]; int wib = threadIdx.x >> 5, lane = threadIdx.x & 31, warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, warps = gridDim.x * (blockDim.x >> 5);
  float *s0 = sh + wib * CAP * (GRAD ? 3 : 1), *s1 = s0 + CAP, *s2 = s1 + CAP; float *st = q.st + (size_t)warp * 256 * 32 + lane;
  for (int g0 = warp * 32; g0 < q.n; g0 += warps * 32) { int i = g0 + lane, lo = q.ptr[i], hi = q.ptr[i + 1], base = __reduce_min_sync(~0u, lo), end = __reduce_max_sync(~0u, hi);
    if (end - base > CAP) { row<GRAD, 4>(q, i, st); __syncwarp(); continue; }
    for (int k = base + lane; k < end; k += 32) { float wv = __ldg(q.w + k), xv = __ldg(q.x + __ldg(q.col + k)); if (GRAD) s0[k - base] = wv, s1[k - base] = xv; else s0[k - base] = wv * xv; } __syncwarp();
    float a = .5f, g = 1; lo -= base; hi -= base;
    for (int j = lo; j < hi; j++) { if (GRAD) { s2[j] = a; a = __sinf(a) + s0[j] * s1[j]; } else a = __sinf(a) + s0[j]; }
    if (!GRAD) { q.y[i] = a; __syncwarp(); continue; }
    for (int j = hi - 1; j >= lo; j--) { float s = s2[j]; s2[j] = g; g *= __cosf(s); } __syncwarp();
    for (int k = base + lane; k < end; k += 32) { float v = s2[k - base]; q.gw[k] = v * s1[k - base]; atomicAdd(q.gx + __ldg(q.col + k), v * s0[k - base]); } __syncwarp(); } }

int main() {
  int sms, n = 1 << 22;
  CK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  std::mt19937 rng(0);
  std::geometric_distribution<int> length(1 / 16.);
  std::vector<int> ptr(n + 1), col;
  for (int i = 0; i < n; i++) ptr[i + 1] = ptr[i] + std::min(1 + length(rng), 256);
  int entries = ptr[n];
  col.resize(entries);
  std::vector<float> w(entries), x(n);
  auto value = [&] { return (rng() >> 8) * (3.4f / (1 << 24)) - 1.7f; };
  for (int &c : col) c = rng() % n;
  for (float &v : w) v = value();
  for (float &v : x) v = value();
  Args q{put(ptr), put(col), put(w), put(x), put(x), put(w), put(x), nullptr, n};
  CK(cudaMalloc(&q.st, 32768ll * sms * 64));
  std::vector<double> ends(n), of_x(n, 0.), kept;
  for (int i = 0; i < n; i++) {
    double a = .5, g = 1;
    kept.clear();
    for (int j = ptr[i]; j < ptr[i + 1]; j++) kept.push_back(a), a = sin(a) + (double)w[j] * x[col[j]];
    ends[i] = a;
    for (int j = ptr[i + 1] - 1; j >= ptr[i]; j--) of_x[col[j]] += g * w[j], g *= cos(kept[j - ptr[i]]);
  }
  printf("{");
  auto go = [&](const char *name, auto kernel, bool reverse, int block, size_t shared) {
    CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    int blocks;
    CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block, shared));
    blocks = reverse || shared ? blocks * sms : n / block;
    double t = median([&] {
      if (reverse) CK(cudaMemsetAsync(q.gx, 0, 4ll * n));
      kernel<<<blocks, block, shared>>>(q);
    });
    double bad = 0, big = 0;
    std::vector<float> got = get(reverse ? q.gx : q.y, n);
    const std::vector<double> &want = reverse ? of_x : ends;
    for (int i = 0; i < n; i++) bad = std::max(bad, fabs(got[i] - want[i])), big = std::max(big, fabs(want[i]));
    printf("\"%s\": %.5g, \"%s_error\": %.2g,\n", name, t, name, bad / big);
  };
  go("rows_plain", plain<false, 1>, false, 256, 0);
  go("rows_unrolled", plain<false, 8>, false, 256, 0);
  go("gradient_plain", plain<true, 1>, true, 256, 0);
  go("gradient_unrolled", plain<true, 8>, true, 256, 0);
  go("gradient_staged", staged<true, 1024>, true, 128, 4ull * 3 * 1024 * 4);
  printf("\"entries\": %d}\n", entries);
}
