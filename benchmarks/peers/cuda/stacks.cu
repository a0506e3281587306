// Reverse mode of the Lorenz loop by hand: adjoint by `rho` of given adjoints of the ends, start (1, 0, 0). Prints JSON.
//   step_k<K>   known trip count: keep every K-th state, replay K steps straight-line in registers
//   thin        unknown trip count: bounded stack whose stride doubles in place
// Layout of a stack: [warp][slot][component][32 lanes]; one stack per *running* lane (persistent blocks).
#include "timing.cuh"

template <class R> struct State { R x, y, z; };
template <class R> __host__ __device__ __forceinline__ State<R> slope(State<R> s, R r) {
  return {R(10) * (s.y - s.x), s.x * (r - s.z) - s.y, s.x * s.y - R(8.0 / 3) * s.z};
}
template <class R> __host__ __device__ __forceinline__ State<R> along(State<R> s, R h, State<R> k) {
  return {s.x + h * k.x, s.y + h * k.y, s.z + h * k.z};
}
template <class R> __host__ __device__ __forceinline__ State<R> step(State<R> s, R r, R dt) {
  State<R> k1 = slope(s, r), k2 = slope(along(s, R(.5) * dt, k1), r), k3 = slope(along(s, R(.5) * dt, k2), r), k4 = slope(along(s, dt, k3), r);
  R w = dt / R(6);
  return {s.x + w * (k1.x + 2 * k2.x + 2 * k3.x + k4.x), s.y + w * (k1.y + 2 * k2.y + 2 * k3.y + k4.y), s.z + w * (k1.z + 2 * k2.z + 2 * k3.z + k4.z)};
}
template <class R> __host__ __device__ __forceinline__ State<R> slope_t(State<R> s, R r, State<R> c, R &ar) {
  ar += s.x * c.y;
  return {-R(10) * c.x + (r - s.z) * c.y + s.y * c.z, R(10) * c.x - c.y + s.x * c.z, -s.x * c.y - R(8.0 / 3) * c.z};
}
template <class R> __host__ __device__ __forceinline__ void step_t(State<R> s, R r, R dt, State<R> &a, R &ar) {  // a := J^T a, ar += d/dr
  R h = R(.5) * dt, w = dt / R(6);
  State<R> k1 = slope(s, r), s2 = along(s, h, k1), k2 = slope(s2, r), s3 = along(s, h, k2), k3 = slope(s3, r), s4 = along(s, dt, k3);
  State<R> g4 = slope_t(s4, r, State<R>{w * a.x, w * a.y, w * a.z}, ar);
  State<R> g3 = slope_t(s3, r, State<R>{2 * w * a.x + dt * g4.x, 2 * w * a.y + dt * g4.y, 2 * w * a.z + dt * g4.z}, ar);
  State<R> g2 = slope_t(s2, r, State<R>{2 * w * a.x + h * g3.x, 2 * w * a.y + h * g3.y, 2 * w * a.z + h * g3.z}, ar);
  State<R> g1 = slope_t(s, r, State<R>{w * a.x + h * g2.x, w * a.y + h * g2.y, w * a.z + h * g2.z}, ar);
  a = {a.x + g1.x + g2.x + g3.x + g4.x, a.y + g1.y + g2.y + g3.y + g4.y, a.z + g1.z + g2.z + g3.z + g4.z};
}
using S = State<float>;
__device__ __forceinline__ void push(float *warp, int slot, S s) { float *p = warp + (size_t)slot * 96; p[0] = s.x; p[32] = s.y; p[64] = s.z; }
__device__ __forceinline__ S peek(const float *warp, int slot) { const float *p = warp + (size_t)slot * 96; return {p[0], p[32], p[64]}; }
template <int K> __device__ __forceinline__ void reverse_block(S s, float r, float dt, S &a, float &ar) {
  S v[K]; v[0] = s;
#pragma unroll
  for (int j = 1; j < K; j++) v[j] = step(v[j - 1], r, dt);
#pragma unroll
  for (int j = K - 1; j >= 0; j--) step_t(v[j], r, dt, a, ar);
}
__device__ __noinline__ void reverse_few(S s, int m, float r, float dt, S &a, float &ar) {  // m < K steps, once a lane
  for (int j = m - 1; j >= 0; j--) { S v = s; for (int q = 0; q < j; q++) v = step(v, r, dt); step_t(v, r, dt, a, ar); }
}
struct Args {
  const float *rho, *ct;
  const int *trips;
  float *gr, *out, *stack;
  int n, T;
  float dt;
};
constexpr S START{1, 0, 0};
__device__ __forceinline__ S load(const float *p, int i) { return {p[3 * i], p[3 * i + 1], p[3 * i + 2]}; }
__device__ __forceinline__ void store(float *p, int i, S s) { p[3 * i] = s.x; p[3 * i + 1] = s.y; p[3 * i + 2] = s.z; }

__global__ void primal(Args q) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= q.n) return;
  S s = START; float r = q.rho[i]; for (int t = 0; t < q.T; t++) s = step(s, r, q.dt); store(q.out, i, s); }
__global__ void primal_while(Args q) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= q.n) return;
  S s = START; float r = q.rho[i]; int m = q.trips[i]; for (int t = 0; t < m; t++) s = step(s, r, q.dt); store(q.out, i, s); }

template <int K> __global__ void step_k(Args q) {  // n a multiple of 32
  int warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31, warps = (gridDim.x * blockDim.x) >> 5, full = q.T / K, rest = q.T - full * K;
  float *st = q.stack + (size_t)warp * (full + 1) * 96 + lane;
  for (int g = warp; g < q.n / 32; g += warps) { int i = g * 32 + lane;
    S s = START, a = load(q.ct, i); float r = q.rho[i], ar = 0;
    for (int b = 0; b < full; b++) { push(st, b, s);
#pragma unroll
      for (int j = 0; j < K; j++) s = step(s, r, q.dt); }
    if (rest) reverse_few(s, rest, r, q.dt, a, ar);
    for (int b = full - 1; b >= 0; b--) reverse_block<K>(peek(st, b), r, q.dt, a, ar);
    q.gr[i] = ar; } }

// Unknown trip count. The outer stack keeps block starts b = 0, s, 2s, ...; block b lies at slot 0 or 1 + (b-1) % M (M odd); when b > M*s the
// stride s doubles and the slots that this frees are the ones written next: nothing moves. Two inner levels of radix 32 replay a stride.
constexpr int K = 8, M = 127, RADIX = 32, SLOTS = 1 + M + 2 * RADIX;
__device__ __forceinline__ int at(int b) { return b == 0 ? 0 : 1 + (b - 1) % M; }
template <class F> __device__ __forceinline__ void replay(float *st, int base, S s, int from, int count, int every, int m, float r, float dt, F use) {
  // keep the starts of `count` pieces of `every` blocks from block `from` on, then use them backwards
  for (int c = 0; c < count; c++) { push(st, base + c, s);
    if (c + 1 < count) for (int e = 0; e < every; e++) if ((from + c * every + e + 1) * K <= m) {
#pragma unroll
      for (int j = 0; j < K; j++) s = step(s, r, dt); } }
  for (int c = count - 1; c >= 0; c--) use(from + c * every, peek(st, base + c)); }
__global__ void thin(Args q) {
  int warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31, warps = (gridDim.x * blockDim.x) >> 5;
  float *st = q.stack + (size_t)warp * SLOTS * 96 + lane; float dt = q.dt;
  for (int g = warp; g < q.n / 32; g += warps) { int i = g * 32 + lane, m = q.trips[i];
    S s = START, a = load(q.ct, i); float r = q.rho[i], ar = 0; int stride = 1, b = 0;
    for (;; b++) {                                                         // all lanes of the warp share b
      bool more = (b + 1) * K <= m; if (!__any_sync(~0u, b * K < m)) break;
      if (b > M * stride) stride *= 2;
      if (b % stride == 0) push(st, at(b), s);
      if (more) {
#pragma unroll
        for (int j = 0; j < K; j++) s = step(s, r, dt); } }
    auto block = [&](int b, S s) { if ((b + 1) * K <= m) reverse_block<K>(s, r, dt, a, ar); else if (b * K < m) reverse_few(s, m - b * K, r, dt, a, ar); };
    int last = b - 1;
    for (int o = last / stride * stride; o >= 0; o -= stride) { S s = peek(st, at(o)); int len = min(stride, last + 1 - o);
      if (stride == 1) block(o, s);
      else if (stride <= RADIX) replay(st, 1 + M, s, o, len, 1, m, r, dt, block);
      else { int every = stride / RADIX;                                   // stride <= RADIX^2
        replay(st, 1 + M, s, o, (len + every - 1) / every, every, m, r, dt, [&](int p, S s) {
          replay(st, 1 + M + RADIX, s, p, min(every, last + 1 - p), 1, m, r, dt, block); }); } }
    q.gr[i] = ar; } }

int main() {
  int n = 1 << 20, sms;
  CK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  std::vector<float> r(n), c(3 * n, 1.f);
  for (int i = 0; i < n; i++) r[i] = 21.f * i / (n - 1);
  Args q{put(r), put(c), nullptr, put(r), put(c), nullptr, n, 0, .005f};
  auto grid = [&](auto kernel, int block) {
    int blocks;
    CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block, 0));
    return std::min(blocks * sms, n / block);
  };
  auto error = [&](auto trips) {  // against a double-precision reverse with every state kept, 32 sampled lanes
    std::vector<float> got = get(q.gr, n);
    double worst = 0;
    for (int k = 0; k < 32; k++) {
      int i = (long long)k * (n - 1) / 31;
      State<double> s{1, 0, 0}, a{1, 1, 1};
      double rho = r[i], ar = 0;
      std::vector<State<double>> kept;
      for (int t = 0; t < trips(i); t++) kept.push_back(s), s = step(s, rho, .005);
      for (int t = trips(i) - 1; t >= 0; t--) step_t(kept[t], rho, .005, a, ar);
      worst = std::max(worst, fabs(got[i] - ar) / std::max(fabs(ar), 1e-3));
    }
    return worst;
  };
  printf("{");
  for (int T : {100, 1000, 10000}) {
    q.T = T;
    int inner = std::max(1, 1000 / T);
    double p = median([&] { primal<<<n / 256, 256>>>(q); }, 5, inner), best = 1e9, bytes_of_best = 0, wrong = 0;
    auto go = [&](auto kernel, int k, int block) {
      int blocks = grid(kernel, block);
      size_t bytes = (size_t)blocks * block / 32 * (T / k + 1) * 384;
      CK(cudaMalloc(&q.stack, bytes));
      CK(cudaMemset(q.gr, 255, 4 * n));
      double t = median([&] { kernel<<<blocks, block>>>(q); }, T > 1000 ? 3 : 5, inner);
      printf("\"grad_%d_K%d_b%d\": %.5g,\n", T, k, block, t);
      if (t < best) best = t, bytes_of_best = bytes, wrong = error([&](int) { return T; });
      CK(cudaFree(q.stack));
    };
    for (int block : {128, 256}) go(step_k<4>, 4, block), go(step_k<8>, 8, block);
    printf("\"primal_%d\": %.5g, \"grad_%d\": %.5g, \"grad_%d_stack_MB\": %.4g, \"grad_%d_error\": %.2g,\n", T, p, T, best, T,
           bytes_of_best / 1e6, T, wrong);
  }
  for (int kind = 0; kind < 3; kind++) {
    int T = kind == 0 ? 1000 : 10000;
    unsigned seed = 1;
    std::vector<int> trips(n, T);
    if (kind == 2)
      for (int &t : trips) t = T / 2 + (int)((seed = seed * 1664525u + 1013904223u) / 4294967296.0 * T / 2);
    q.trips = put(trips);
    double p = median([&] { primal_while<<<n / 256, 256>>>(q); }, 3);
    int blocks = grid(thin, 128);
    size_t bytes = (size_t)blocks * 4 * SLOTS * 384;
    CK(cudaMalloc(&q.stack, bytes));
    CK(cudaMemset(q.gr, 255, 4 * n));
    const char *name = kind == 0 ? "1000" : kind == 1 ? "10000" : "each";
    double t = median([&] { thin<<<blocks, 128>>>(q); }, 3);
    printf("\"while_%s_primal\": %.5g, \"while_%s\": %.5g, \"while_%s_stack_MB\": %.4g, \"while_%s_error\": %.2g%s\n", name, p,
           name, t, name, bytes / 1e6, name, error([&](int i) { return trips[i]; }), kind == 2 ? "}" : ",");
    CK(cudaFree(q.stack));
    CK(cudaFree((void *)q.trips));
  }
}
