// Lorenz, Mandelbrot, a chain of eight loops as one, and a copy: what a careful user writes by hand. Prints JSON (ms).
#include "timing.cuh"

template <class R> __host__ __device__ inline void step(R &x, R &y, R &z, R r, R dt) {
  const R c = R(8.0 / 3), h = R(.5) * dt;
  R k1x = 10 * (y - x), k1y = x * (r - z) - y, k1z = x * y - c * z;
  R x2 = x + h * k1x, y2 = y + h * k1y, z2 = z + h * k1z;
  R k2x = 10 * (y2 - x2), k2y = x2 * (r - z2) - y2, k2z = x2 * y2 - c * z2;
  R x3 = x + h * k2x, y3 = y + h * k2y, z3 = z + h * k2z;
  R k3x = 10 * (y3 - x3), k3y = x3 * (r - z3) - y3, k3z = x3 * y3 - c * z3;
  R x4 = x + dt * k3x, y4 = y + dt * k3y, z4 = z + dt * k3z;
  R k4x = 10 * (y4 - x4), k4y = x4 * (r - z4) - y4, k4z = x4 * y4 - c * z4;
  x += dt / 6 * (k1x + 2 * k2x + 2 * k3x + k4x);
  y += dt / 6 * (k1y + 2 * k2y + 2 * k3y + k4y);
  z += dt / 6 * (k1z + 2 * k2z + 2 * k3z + k4z);
}

__global__ void lorenz(const float *rho, float *out, int n, int steps, float dt) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = 1, y = 0, z = 0, r = rho[i];
  for (int t = 0; t < steps; t++) step(x, y, z, r, dt);
  out[i] = x;
}

__global__ void mandelbrot(int *out, int n, int most) {
  int b = blockIdx.x * blockDim.x + threadIdx.x, a = blockIdx.y;
  if (b >= n) return;
  float cx = -2.f + 3.f * b / n, cy = -1.5f + 3.f * a / n, x = 0, y = 0;
  int k = 0;
  while (k < most && x * x + y * y < 4.f) {
    float t = x * x - y * y + cx;
    y = 2 * x * y + cy;
    x = t;
    k++;
  }
  out[(size_t)a * n + b] = k;
}

template <class R> __host__ __device__ inline R eight(R a) {
  R b = a * 2, c = b + a;
  b = c * c + 1;
  c = sqrt(b);
  b = c + a * R(.5);
  c = b * b;
  b = c - a;
  return b * R(.25);
}

__global__ void chain(const float4 *a, float4 *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 v = a[i];
  out[i] = {eight(v.x), eight(v.y), eight(v.z), eight(v.w)};
}

int main() {
  int n = 1 << 20, steps = 1000;
  std::vector<float> rho(n);
  for (int i = 0; i < n; i++) rho[i] = 21.f * i / (n - 1);
  float *r = put(rho), *ends = put(rho);
  printf("{\"lorenz\": %.5g,\n", median([&] { lorenz<<<n / 256, 256>>>(r, ends, n, steps, .001f); }, 7, 4));
  double worst = 0;
  std::vector<float> got = get(ends, n);
  for (int i = 0; i < n; i += n / 64) {
    double x = 1, y = 0, z = 0;
    for (int t = 0; t < steps; t++) step<double>(x, y, z, rho[i], .001);
    worst = std::max(worst, fabs(got[i] - x) / std::max(1., fabs(x)));
  }
  printf("\"lorenz_error\": %.2g,\n", worst);

  int side = 4096;
  int *image;
  CK(cudaMalloc(&image, 4ll * side * side));
  dim3 grid(side / 256, side);
  printf("\"mandelbrot\": %.5g,\n", median([&] { mandelbrot<<<grid, 256>>>(image, side, 1000); }, 7, 4));
  long long sum = 0;
  for (int k : get(image, (size_t)side * side)) sum += k;
  printf("\"mandelbrot_sum\": %lld,\n", sum);

  int count = 1 << 26;
  std::vector<float> values(count);
  for (int i = 0; i < count; i++) values[i] = (i % 20011) * 1e-3f - 10;
  float *a = put(values), *b;
  CK(cudaMalloc(&b, 4ll * count));
  printf("\"chain\": %.5g,\n",
         median([&] { chain<<<count / 1024, 256>>>((const float4 *)a, (float4 *)b, count / 4); }, 9, 8));
  worst = 0;
  std::vector<float> last = get(b, count);
  for (int i = 0; i < count; i += 1001) worst = std::max(worst, fabs(last[i] / eight<double>(values[i]) - 1));
  printf("\"chain_error\": %.2g,\n", worst);
  printf("\"copy\": %.5g}\n",
         median([&] { CK(cudaMemcpyAsync(b, a, 4ll * count, cudaMemcpyDeviceToDevice)); }, 9, 8));
}
