// The innermost loops: sums over a run of floats or doubles, or over two runs. Nothing here knows of PyTorch.
#pragma once

#include "vectors.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace hookcli {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double plus(double a, double b) { return a + b; }
inline double lower(double a, double b) { return std::min(a, b); }
inline double higher(double a, double b) { return std::max(a, b); }

// A field of Sums, its value for no elements, and how those of two runs go together.
#define HOOKCLI_SUMS(_) \
  _(low, kInfinity, lower) _(high, -kInfinity, higher) _(total, 0, plus) _(squares, 0, plus) _(zeros, 0, plus)

struct Sums {
#define HOOKCLI_DECLARE(field, start, combine) double field = start;
  HOOKCLI_SUMS(HOOKCLI_DECLARE)
#undef HOOKCLI_DECLARE
  double n = 0;

  void add(const Sums& other) {
#define HOOKCLI_ADD(field, start, combine) field = combine(field, other.field);
    HOOKCLI_SUMS(HOOKCLI_ADD)
#undef HOOKCLI_ADD
    n += other.n;
  }
};

// Each lane sums 16 elements, then at most 16 such sums, then doubles take over: an error of a few ulp, also where all
// elements are equal and every addition rounds the same way.
template <typename T, bool SHIFTED>
HOOKCLI_INLINE void sum_lanes(const T* x, int64_t n, T origin, Sums& sums) {
  using Vector = typename Lanes<T>::Vector;
  constexpr int64_t WIDTH = 64 / sizeof(T), PAIR = 2 * WIDTH, GROUP = 16 * PAIR, BLOCK = 16 * GROUP;
  const Vector zero = {};
  Vector low0 = zero + static_cast<T>(kInfinity), low1 = low0, high0 = -low0, high1 = high0;
  const int64_t whole = n - n % WIDTH;
  for (int64_t block = 0; block < whole; block += BLOCK) {
    const int64_t block_end = std::min(block + BLOCK, whole);
    Vector total = zero, squares = zero;
    typename Lanes<T>::Mask zeros0 = {}, zeros1 = {};
    for (int64_t group = block; group < block_end; group += GROUP) {
      const int64_t end = std::min(group + GROUP, block_end);
      Vector total0 = zero, total1 = zero, squares0 = zero, squares1 = zero;
      int64_t i = group;
      for (; i + PAIR <= end; i += PAIR) {
        const Vector a = load(x + i);
        const Vector b = load(x + i + WIDTH);
        const Vector c = SHIFTED ? a - origin : a, d = SHIFTED ? b - origin : b;
        total0 += c;
        total1 += d;
        squares0 += c * c;
        squares1 += d * d;
        low0 = lower(a, low0);
        low1 = lower(b, low1);
        high0 = higher(a, high0);
        high1 = higher(b, high1);
        zeros0 += a == zero;
        zeros1 += b == zero;
      }
      if (i < end) {
        const Vector a = load(x + i);
        const Vector c = SHIFTED ? a - origin : a;
        total0 += c;
        squares0 += c * c;
        low0 = lower(a, low0);
        high0 = higher(a, high0);
        zeros0 += a == zero;
      }
      total += total0 + total1;
      squares += squares0 + squares1;
    }
    for (int64_t lane = 0; lane < WIDTH; ++lane) {
      sums.total += total[lane];
      sums.squares += squares[lane];
      sums.zeros -= static_cast<double>(zeros0[lane] + zeros1[lane]);
    }
  }
  for (int64_t lane = 0; lane < WIDTH && whole; ++lane) {
    sums.low = std::min<double>(sums.low, std::min(low0[lane], low1[lane]));
    sums.high = std::max<double>(sums.high, std::max(high0[lane], high1[lane]));
  }
  for (int64_t i = whole; i < n; ++i) {
    const double value = x[i], from = SHIFTED ? value - origin : value;
    sums.total += from;
    sums.squares += from * from;
    sums.zeros += value == 0;
    sums.low = std::min(sums.low, value);
    sums.high = std::max(sums.high, value);
  }
  sums.n += static_cast<double>(n);
}

HOOKCLI_CLONES inline void sum_floats(const float* x, int64_t n, Sums& sums) {
  sum_lanes<float, false>(x, n, 0.0f, sums);
}
HOOKCLI_CLONES inline void sum_doubles(const double* x, int64_t n, double origin, Sums& sums) {
  sum_lanes<double, true>(x, n, origin, sums);
}

// A field of Apart: of the differences of two runs, the largest, the sum and the sum of squares, without their signs;
// and the sums of squares of both runs. All begin at 0.
#define HOOKCLI_APART(_) _(peak) _(total) _(errors) _(of_a) _(of_b)

struct Apart {
#define HOOKCLI_DECLARE(field) double field = 0;
  HOOKCLI_APART(HOOKCLI_DECLARE)
#undef HOOKCLI_DECLARE

  void add(const Apart& other) {
    const double most = std::max(peak, other.peak);
#define HOOKCLI_ADD(field) field += other.field;
    HOOKCLI_APART(HOOKCLI_ADD)
#undef HOOKCLI_ADD
    peak = most;
  }
};

// Sums as sum_lanes does, with the same error.
HOOKCLI_CLONES inline void compare_floats(const float* x, const float* y, int64_t n, Apart& apart) {
  using Vector = Lanes<float>::Vector;
  constexpr int64_t WIDTH = 16, GROUP = 16 * WIDTH, BLOCK = 16 * GROUP;
  const Vector zero = {};
  Vector peak = zero;
  const int64_t whole = n - n % WIDTH;
  for (int64_t block = 0; block < whole; block += BLOCK) {
    const int64_t block_end = std::min(block + BLOCK, whole);
    Vector total = zero, errors = zero, of_a = zero, of_b = zero;
    for (int64_t group = block; group < block_end; group += GROUP) {
      const int64_t end = std::min(group + GROUP, block_end);
      Vector total1 = zero, errors1 = zero, of_a1 = zero, of_b1 = zero;
      for (int64_t i = group; i < end; i += WIDTH) {
        const Vector a = load(x + i);
        const Vector b = load(y + i);
        const Vector error = a - b, size = higher(error, -error);
        peak = higher(size, peak);
        total1 += size;
        errors1 += error * error;
        of_a1 += a * a;
        of_b1 += b * b;
      }
      total += total1;
      errors += errors1;
      of_a += of_a1;
      of_b += of_b1;
    }
    for (int64_t lane = 0; lane < WIDTH; ++lane) {
      apart.total += total[lane];
      apart.errors += errors[lane];
      apart.of_a += of_a[lane];
      apart.of_b += of_b[lane];
    }
  }
  for (int64_t lane = 0; lane < WIDTH; ++lane) apart.peak = std::max<double>(apart.peak, peak[lane]);
  for (int64_t i = whole; i < n; ++i) {
    const double a = x[i], b = y[i], error = x[i] - y[i], size = error < 0 ? -error : error;
    apart.peak = std::max(apart.peak, size);
    apart.total += size;
    apart.errors += error * error;
    apart.of_a += a * a;
    apart.of_b += b * b;
  }
}

} // namespace hookcli
