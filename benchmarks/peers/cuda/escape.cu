// `while` loops by hand: Newton's method for Kepler's equation, and van der Pol's oscillator by Runge-Kutta with 350 to
// 2000 steps in no order. For three numbers of lanes; prints JSON (ms). Compiled without fast math: `kepler` has the
// library's sine and cosine, `kepler_fast` the hardware's.
#include "timing.cuh"

__device__ inline float sine(float x, bool fast) { return fast ? __sinf(x) : sinf(x); }
__device__ inline float cosine(float x, bool fast) { return fast ? __cosf(x) : cosf(x); }

template <bool FAST> __global__ void kepler(const float *e, const float *mean, float *out, int *trips, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float c = e[i], m = mean[i], x = m, f = x - c * sine(x, FAST) - m;
  int k = 0;
  for (; k < 100 && fabsf(f) > 1e-6f; k++) {
    float slope = 1 - c * cosine(x, FAST);
    x -= FAST ? __fdividef(f, slope) : f / slope;
    f = x - c * sine(x, FAST) - m;
  }
  out[i] = x;
  if (trips) trips[i] = k;
}

template <class R> __host__ __device__ inline void step(R &x, R &v, R h) {
  R a = v, p = (1 - x * x) * v - x;
  R x1 = x + R(.5) * h * a, v1 = v + R(.5) * h * p, b = v1, q = (1 - x1 * x1) * v1 - x1;
  R x2 = x + R(.5) * h * b, v2 = v + R(.5) * h * q, c = v2, r = (1 - x2 * x2) * v2 - x2;
  R x3 = x + h * c, v3 = v + h * r, d = v3, s = (1 - x3 * x3) * v3 - x3;
  x += h / 6 * (a + 2 * b + 2 * c + d);
  v += h / 6 * (p + 2 * q + 2 * r + s);
}

__global__ void oscillator(const float *start, const int *trips, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = start[i], v = 0;
  int k = 0, most = trips[i];
  while (k < most) {
    step(x, v, .01f);
    k++;
  }
  out[i] = x;
}

int main() {
  printf("{");
  for (int n : {1 << 16, 1 << 20, 1 << 22}) {
    std::vector<float> e(n), mean(n), start(n);
    std::vector<int> trips(n);
    unsigned seed = 1;
    auto uniform = [&] { return (seed = seed * 1664525u + 1013904223u) / 4294967296.0; };
    for (int i = 0; i < n; i++) {
      e[i] = .99 * uniform(), mean[i] = 2 * M_PI * uniform(), start[i] = .5 + 2 * uniform();
      trips[i] = 350 + (int)(1651 * uniform());
    }
    float *de = put(e), *dm = put(mean), *ds = put(start), *out = put(start);
    int *dt = put(trips), *none = nullptr;
    auto check = [&](const char *name) {
      double worst = 0;
      std::vector<float> got = get(out, n);
      for (int i = 0; i < n; i += n / 1024)
        worst = std::max(worst, fabs(got[i] - e[i] * sin((double)got[i]) - mean[i]));
      printf("\"%s_%d_residual\": %.2g,\n", name, n, worst);
    };
    double t = median([&] { kepler<false><<<n / 256, 256>>>(de, dm, out, none, n); }, 9, 8);
    printf("\"kepler_%d\": %.5g,\n", n, t);
    check("kepler");
    t = median([&] { kepler<true><<<n / 256, 256>>>(de, dm, out, none, n); }, 9, 8);
    printf("\"kepler_fast_%d\": %.5g,\n", n, t);
    check("kepler_fast");
    int *ran = put(trips);
    kepler<false><<<n / 256, 256>>>(de, dm, out, ran, n);
    long long all = 0;
    for (int k : get(ran, n)) all += k;
    printf("\"kepler_%d_mean_trips\": %.4g,\n", n, (double)all / n);
    t = median([&] { oscillator<<<n / 256, 256>>>(ds, dt, out, n); }, 7, 4);
    printf("\"oscillator_%d\": %.5g,\n", n, t);
    double worst = 0;
    std::vector<float> got = get(out, n);
    for (int i = 0; i < n; i += n / 256) {
      double x = start[i], v = 0;
      for (int k = 0; k < trips[i]; k++) step<double>(x, v, .01);
      worst = std::max(worst, fabs(got[i] - x));
    }
    printf("\"oscillator_%d_error\": %.2g%s\n", n, worst, n == 1 << 22 ? "}" : ",");
    for (void *p : {(void *)de, (void *)dm, (void *)ds, (void *)out, (void *)dt, (void *)ran}) CK(cudaFree(p));
  }
}
