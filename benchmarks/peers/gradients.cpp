// Gradients written by hand for SIMD lanes, two levels of which are explicit: a lane of a vector is one element, and V
// vectors run side by side to hide latency. `simd_gradients.py` compiles this with the machine's own compiler.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__AVX512F__)
constexpr int W = 16;
#else
constexpr int W = 8;
#endif
typedef float Floats __attribute__((vector_size(4 * W)));
typedef int Ints __attribute__((vector_size(4 * W)));

// V vectors as a chain of members: compilers keep each in a register, which they do not with an array of them.
template <int V> struct Pack {
  Floats first;
  Pack<V - 1> rest;
};
template <> struct Pack<1> {
  Floats first;
};

#define ELEMENTWISE(op)                                                     \
  template <int V> inline Pack<V> operator op(Pack<V> a, Pack<V> b) {       \
    if constexpr (V == 1) return {a.first op b.first};                      \
    else return {a.first op b.first, a.rest op b.rest};                     \
  }
ELEMENTWISE(+)
ELEMENTWISE(-)
ELEMENTWISE(*)

template <int V> inline Pack<V> operator*(float a, Pack<V> b) {
  if constexpr (V == 1) return {a * b.first};
  else return {a * b.first, a * b.rest};
}

template <int V> inline Pack<V> everywhere(float value) {
  if constexpr (V == 1) return {Floats{} + value};
  else return {Floats{} + value, everywhere<V - 1>(value)};
}

template <int V> inline Pack<V> load(const float *from) {
  Pack<V> made;
  memcpy(&made, from, sizeof made);
  return made;
}

// Runs `body(first, thread)` for each chunk of a range; each thread has a contiguous part.
template <class Body> void parallel(int n, int chunk, int threads, Body body) {
  int chunks = (n + chunk - 1) / chunk, part = (chunks + threads - 1) / threads;
  auto run = [=](int thread) {
    for (int k = thread * part; k < std::min(chunks, (thread + 1) * part); k++) body(k * chunk, thread);
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; thread++) others.emplace_back(run, thread);
  run(0);
  for (auto &other : others) other.join();
}

// The Lorenz system by classical Runge-Kutta.
template <int V> struct State {
  Pack<V> x, y, z;
};

template <int V> inline State<V> slope(State<V> s, Pack<V> rho) {
  return {10.f * (s.y - s.x), s.x * (rho - s.z) - s.y, s.x * s.y - (8.f / 3) * s.z};
}

template <int V> inline State<V> along(State<V> s, float h, State<V> k) {
  return {s.x + h * k.x, s.y + h * k.y, s.z + h * k.z};
}

constexpr float STEP = 0.005f;

template <int V> inline State<V> step(State<V> s, Pack<V> rho) {
  State<V> k1 = slope(s, rho), k2 = slope(along(s, STEP / 2, k1), rho);
  State<V> k3 = slope(along(s, STEP / 2, k2), rho), k4 = slope(along(s, STEP, k3), rho);
  auto mean = [](Pack<V> a, Pack<V> b, Pack<V> c, Pack<V> d) { return (STEP / 6) * (a + 2.f * b + 2.f * c + d); };
  return {s.x + mean(k1.x, k2.x, k3.x, k4.x), s.y + mean(k1.y, k2.y, k3.y, k4.y), s.z + mean(k1.z, k2.z, k3.z, k4.z)};
}

// The transposed slope; adds what reaches the parameter to `rho_bar`.
template <int V> inline State<V> slope_back(State<V> s, Pack<V> rho, State<V> bar, Pack<V> &rho_bar) {
  Pack<V> xy = s.x * bar.y;
  rho_bar = rho_bar + xy;
  return {(rho - s.z) * bar.y + s.y * bar.z - 10.f * bar.x, 10.f * bar.x - bar.y + s.x * bar.z,
          -1.f * (xy + (8.f / 3) * bar.z)};
}

template <int V> inline void step_back(State<V> s, Pack<V> rho, State<V> &bar, Pack<V> &rho_bar) {
  State<V> k1 = slope(s, rho), s2 = along(s, STEP / 2, k1), k2 = slope(s2, rho);
  State<V> s3 = along(s, STEP / 2, k2), k3 = slope(s3, rho), s4 = along(s, STEP, k3);
  auto scaled = [](float a, State<V> p) { return State<V>{a * p.x, a * p.y, a * p.z}; };
  State<V> b4 = slope_back(s4, rho, scaled(STEP / 6, bar), rho_bar);
  State<V> b3 = slope_back(s3, rho, along(scaled(STEP / 3, bar), STEP, b4), rho_bar);
  State<V> b2 = slope_back(s2, rho, along(scaled(STEP / 3, bar), STEP / 2, b3), rho_bar);
  State<V> b1 = slope_back(s, rho, along(scaled(STEP / 6, bar), STEP / 2, b2), rho_bar);
  bar = {bar.x + b1.x + b2.x + b3.x + b4.x, bar.y + b1.y + b2.y + b3.y + b4.y, bar.z + b1.z + b2.z + b3.z + b4.z};
}

// Keeps every K-th state; K steps are run again in registers and reversed in straight lines.
template <int V, int K> void lorenz(const float *rho, float *out, int n, int steps, int threads) {
  std::vector<State<V> *> stacks;
  for (int k = 0; k < threads; k++)
    stacks.push_back((State<V> *)aligned_alloc(alignof(State<V>), sizeof(State<V>) * (steps / K)));
  parallel(n, V * W, threads, [&](int i, int thread) {
    State<V> *stack = stacks[thread];
    Pack<V> parameter = load<V>(rho + i), rho_bar = everywhere<V>(0);
    State<V> s{everywhere<V>(1), everywhere<V>(0), everywhere<V>(0)};
    for (int t = 0; t < steps / K; t++) {
      stack[t] = s;
      for (int j = 0; j < K; j++) s = step(s, parameter);
    }
    State<V> bar{everywhere<V>(1), everywhere<V>(1), everywhere<V>(1)};
    for (int t = steps / K - 1; t >= 0; t--) {
      State<V> piece[K];
      piece[0] = stack[t];
#pragma GCC unroll 8
      for (int j = 1; j < K; j++) piece[j] = step(piece[j - 1], parameter);
#pragma GCC unroll 8
      for (int j = K - 1; j >= 0; j--) step_back(piece[j], parameter, bar, rho_bar);
    }
    memcpy(out + i, &rho_bar, sizeof rho_bar);
  });
  for (auto stack : stacks) free(stack);
}

// `n` is a multiple of 2 W, `steps` one of `piece`. Gives 0 where there is no such variant.
extern "C" int lorenz_adjoint(int vectors, int piece, const float *rho, float *out, int n, int steps, int threads) {
#define VARIANT(V, K) \
  if (vectors == V && piece == K) return lorenz<V, K>(rho, out, n, steps, threads), 1;
  VARIANT(1, 1) VARIANT(1, 2) VARIANT(1, 4) VARIANT(2, 1) VARIANT(2, 2) VARIANT(2, 4)
  return 0;
}

// Sine by reduction to [-pi/2, pi/2] with pi in three parts, and a polynomial.
inline Floats sine(Floats x) {
  const float magic = 12582912.f;  // adding it rounds to an integer, which is then in the lowest bits
  Floats turned = x * 0.318309886f + magic;
  Ints parity = (Ints)turned << 31;
  turned -= magic;
  x = x - turned * 3.140625f - turned * 9.67502593994140625e-4f - turned * 1.509957990978376e-7f;
  Floats square = x * x;
  Floats series = 2.6083159809786594e-6f * square - 1.981069071916863e-4f;
  series = (series * square + 8.333078585565095e-3f) * square - 0.16666659712791443f;
  return (Floats)((Ints)(series * square * x + x) ^ parity);
}

inline Floats cosine(Floats x) { return sine(x + 1.5707963267948966f); }

inline bool any(Ints on) {
  int found = 0;
  for (int lane = 0; lane < W; lane++) found |= on[lane];
  return found;
}

// acc = sin(acc) + w[j] x[col[j]] over the entries of each row, reversed: states on a stack, adjoints of `w` where a row
// is alone, those of `x` in a copy a thread. `rows` is a multiple of W, no row is longer than `longest`.
extern "C" void ragged_adjoint(const int *ptr, const int *col, const float *w, const float *x, float *w_bar,
                               float *x_bar, int rows, int longest, int threads) {
  std::vector<std::vector<float>> own(threads, std::vector<float>(rows));
  std::vector<std::vector<Floats>> stacks(threads, std::vector<Floats>(longest + 1));
  parallel(rows, W, threads, [&](int i, int thread) {
    Floats *stack = stacks[thread].data();
    float *mine = own[thread].data();
    Ints first, end;
    memcpy(&first, ptr + i, sizeof first);
    memcpy(&end, ptr + i + 1, sizeof end);
    Floats acc = Floats{} + 0.5f;
    int depth = 0;
    Ints j = first;
    for (Ints on; any(on = j < end); depth++, j -= on) {
      stack[depth] = acc;
      Floats term{};
      for (int lane = 0; lane < W; lane++) {
        int at = on[lane] ? j[lane] : 0;
        term[lane] = w[at] * x[col[at]];
      }
      Floats next = sine(acc) + term;
      acc = on ? next : acc;
    }
    Floats bar = Floats{} + 1.f;
    while (depth--) {
      for (int lane = 0; lane < W; lane++) {
        int at = first[lane] + depth;
        if (at < end[lane]) {
          w_bar[at] = bar[lane] * x[col[at]];
          mine[col[at]] += bar[lane] * w[at];
        }
      }
      Floats next = bar * cosine(stack[depth]);
      bar = first + depth < end ? next : bar;
    }
  });
  parallel(rows, W, threads, [&](int i, int) {
    Floats sum{};
    for (auto &copy : own) {
      Floats part;
      memcpy(&part, &copy[i], sizeof part);
      sum += part;
    }
    memcpy(x_bar + i, &sum, sizeof sum);
  });
}
