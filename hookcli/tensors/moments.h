// Moments of numbers: what hookcli/tensors/stats.py measures, by the same definition. Nothing here knows of PyTorch.
//
// Memory is read once and summed in float lanes that go into doubles before rounding adds up. Where floats are not good
// enough (a mean far above the spread, values whose squares leave float's range) it is read again in double, about the
// first element; where it holds NaN or Inf, once more, element by element.
//
// A source of numbers has `narrow()`, `first()`, the first number, and `over<T, Part>(reduce)`, which calls
// `reduce(x, n, part)` with runs of all numbers as T, in several threads, and adds the parts up.
#pragma once

#include "lanes.h"

#include <cmath>

namespace hookcli {

// The statistics by name, in the order of hookcli.table.STATS_KEYS: as numbers, or as tensors on a device.
#define HOOKCLI_STATISTICS(_) _(numel) _(mean) _(std) _(min) _(max) _(l2) _(zeros) _(nan) _(inf)

template <typename T>
struct Statistics {
#define HOOKCLI_DECLARE(name) T name{};
  HOOKCLI_STATISTICS(HOOKCLI_DECLARE)
#undef HOOKCLI_DECLARE
};

using Moments = Statistics<double>;

// Above these ratios of squared mean to variance, sum(x^2) - n*mean^2 is not within 1e-5 in float, in double.
constexpr double kFar = 16.0, kFarInDouble = 1e6;
// Squares of values outside of this range leave float's normal range.
constexpr double kTiny = 1e-15, kHuge = 1e15;
// Squares of values outside of this range leave double's.
constexpr double kTiniest = 1e-140, kHugest = 1e140;

inline Moments finished(const Sums& sums, double origin) {
  const double mean = sums.total / sums.n;
  const double m2 = std::max(0.0, sums.squares - sums.total * mean);
  const double squares = sums.squares + 2 * origin * sums.total + sums.n * origin * origin;
  Moments found;
  found.numel = sums.n;
  found.mean = origin + mean;
  found.std = std::sqrt(m2 / std::max(sums.n - 1, 1.0));
  found.min = sums.low;
  found.max = sums.high;
  found.l2 = std::sqrt(squares);
  found.zeros = sums.zeros;
  return found;
}

inline bool within(const Sums& sums, double tiny, double huge) {
  const double peak = std::max(-sums.low, sums.high);
  return peak == 0 || (tiny < peak && peak < huge);
}

inline bool trusted(const Sums& sums, double far) {
  const double mean = sums.total / sums.n;
  return std::isfinite(sums.total) && std::isfinite(sums.squares) &&
      !(sums.total * mean > far * (sums.squares - sums.total * mean));
}

struct CarefulSums : Sums {
  double nan = 0, inf = 0;

  void add(const CarefulSums& other) {
    Sums::add(other);
    nan += other.nan;
    inf += other.inf;
  }
};

// The finite elements alone, in passes of doubles, in units of the power of two next to the largest magnitude where
// squares would leave double's range. The unit is multiplied with in two steps: its inverse may be no double.
template <typename Source>
Moments careful(const Source& source) {
  const auto seen = source.template over<double, CarefulSums>([](const double* x, int64_t n, CarefulSums& part) {
    for (int64_t i = 0; i < n; ++i) {
      part.nan += std::isnan(x[i]);
      part.inf += std::isinf(x[i]);
      if (!std::isfinite(x[i])) continue;
      part.n += 1;
      part.zeros += x[i] == 0;
      part.low = std::min(part.low, x[i]);
      part.high = std::max(part.high, x[i]);
    }
  });
  Moments counts;
  counts.numel = seen.n + seen.nan + seen.inf;
  counts.nan = seen.nan;
  counts.inf = seen.inf;
  if (seen.n == 0) return counts;
  int exponent = 0;
  if (!within(seen, kTiniest, kHugest)) std::frexp(std::max(-seen.low, seen.high), &exponent);
  const double a = std::ldexp(1.0, -(exponent / 2)), b = std::ldexp(1.0, -(exponent - exponent / 2));
  const auto about = [&](double origin) {
    return source.template over<double, Sums>([a, b, origin](const double* x, int64_t n, Sums& part) {
      for (int64_t i = 0; i < n; ++i) {
        if (!std::isfinite(x[i])) continue;
        const double value = x[i] * a * b - origin;
        part.n += 1;
        part.total += value;
        part.squares += value * value;
      }
    });
  };
  const auto plain = about(0);
  const double mean = plain.total / plain.n;
  Moments found = finished(about(mean), mean);
  found.numel = counts.numel;
  found.mean = found.mean / a / b;
  found.std = found.std / a / b;
  found.min = seen.low;
  found.max = seen.high;
  found.l2 = std::sqrt(plain.squares) / a / b;
  found.zeros = seen.zeros;
  found.nan = counts.nan;
  found.inf = counts.inf;
  return found;
}

// The moments of one number or more.
template <typename Source>
Moments moments(const Source& source) {
  if (source.narrow()) {
    const Sums sums = source.template over<float, Sums>([](const float* x, int64_t n, Sums& part) { sum_floats(x, n, part); });
    if (trusted(sums, kFar) && within(sums, kTiny, kHuge)) return finished(sums, 0);
  }
  const double origin = source.first();
  if (std::isfinite(origin)) {
    const Sums sums = source.template over<double, Sums>(
        [origin](const double* x, int64_t n, Sums& part) { sum_doubles(x, n, origin, part); });
    const Moments found = finished(sums, origin);
    const bool near = found.l2 * found.l2 >= 1e-6 * sums.squares;
    if (trusted(sums, kFarInDouble) && within(sums, kTiniest, kHugest) && near) return found;
  }
  return careful(source);
}

} // namespace hookcli
