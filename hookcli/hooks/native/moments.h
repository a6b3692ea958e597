// Moments of a gradient: what hookcli/tensors/stats.py measures, by the same definition, without the GIL.
//
// Dense memory on the CPU is read once, in PyTorch's own threads, and summed in float lanes that go into doubles before rounding adds up.
// Where floats are not good enough (a mean far above the spread, values whose squares leave float's range) the tensor
// is read again in double, about its first element; where it holds NaN or Inf, once more, element by element.
#pragma once

#include "../../tensors/widen.h"

#include <ATen/Tensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/real.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hookcli {

// The statistics by name, in the order of hookcli.report.STATS_KEYS: as numbers, or as tensors on a device.
#define HOOKCLI_STATISTICS(_) _(numel) _(mean) _(std) _(min) _(max) _(l2) _(zeros) _(nan) _(inf)

template <typename T>
struct Statistics {
#define HOOKCLI_DECLARE(name) T name{};
  HOOKCLI_STATISTICS(HOOKCLI_DECLARE)
#undef HOOKCLI_DECLARE
};

template <typename T>
std::vector<T> in_order(const Statistics<T>& found) {
#define HOOKCLI_LIST(name) found.name,
  return {HOOKCLI_STATISTICS(HOOKCLI_LIST)};
#undef HOOKCLI_LIST
}

inline std::vector<std::string> statistics_names() {
#define HOOKCLI_NAME(name) #name,
  return {HOOKCLI_STATISTICS(HOOKCLI_NAME)};
#undef HOOKCLI_NAME
}

using Moments = Statistics<double>;

constexpr int64_t kGrain = 1 << 16;  // elements for a thread, below which waking it costs more than it saves
// Above these ratios of squared mean to variance, sum(x^2) - n*mean^2 is not within 1e-5 in float, in double.
constexpr double kFar = 16.0, kFarInDouble = 1e6;
// Squares of values outside of this range leave float's normal range.
constexpr double kTiny = 1e-15, kHuge = 1e15;
// The same of double's.
constexpr double kTiniest = 1e-140, kHugest = 1e140;

// Calls `reduce(x, n, part)` with runs of the tensor's elements as T, in PyTorch's own threads, and adds the parts up.
// The iterator's loop is in libtorch: compiled here, at::parallel_for would need an OpenMP runtime beside torch's own.
template <typename T, typename Part, typename Reduce>
Part over(const at::Tensor& tensor, const Reduce& reduce) {
  constexpr int64_t RUN = 4096;
  constexpr bool FLOAT = std::is_same_v<T, float>;
  const at::ScalarType type = tensor.scalar_type();
  const bool as_is = type == (FLOAT ? at::kFloat : at::kDouble);
  std::mutex mutex;
  Part whole;
  auto iterator = at::TensorIteratorConfig().set_check_mem_overlap(false).add_const_input(tensor).build();
  const auto rows = [&](char** data, const int64_t* strides, int64_t columns, int64_t rows) {
    alignas(64) T buffer[RUN];
    Part part;
    for (int64_t row = 0; row < rows; ++row) {
      const char* start = data[0] + row * strides[1];
      if (as_is && strides[0] == static_cast<int64_t>(sizeof(T))) {
        reduce(reinterpret_cast<const T*>(start), columns, part);
        continue;
      }
      for (int64_t i = 0; i < columns; i += RUN) {
        const int64_t n = std::min(RUN, columns - i);
        widen<T>(type, start + i * strides[0], strides[0], n, buffer);
        reduce(buffer, n, part);
      }
    }
    std::lock_guard<std::mutex> lock(mutex);
    whole.add(part);
  };
  iterator.for_each(rows, kGrain);
  return whole;
}

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
inline Moments careful(const at::Tensor& tensor) {
  const auto seen = over<double, CarefulSums>(tensor, [](const double* x, int64_t n, CarefulSums& part) {
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
    return over<double, Sums>(tensor, [a, b, origin](const double* x, int64_t n, Sums& part) {
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

// Of a strided CPU tensor of float, double, half or bfloat16 with at least one element.
inline Moments moments_on_cpu(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kDouble) {
    const Sums sums =
        over<float, Sums>(tensor, [](const float* x, int64_t n, Sums& part) { sum_floats(x, n, part); });
    if (trusted(sums, kFar) && within(sums, kTiny, kHuge)) return finished(sums, 0);
  }
  double origin;
  widen<double>(tensor.scalar_type(), static_cast<const char*>(tensor.const_data_ptr()), 0, 1, &origin);
  if (std::isfinite(origin)) {
    const Sums sums = over<double, Sums>(
        tensor, [origin](const double* x, int64_t n, Sums& part) { sum_doubles(x, n, origin, part); });
    const Moments found = finished(sums, origin);
    const bool near = found.l2 * found.l2 >= 1e-6 * sums.squares;
    if (trusted(sums, kFarInDouble) && within(sums, kTiniest, kHugest) && near) return found;
  }
  return careful(tensor);
}

// One float64 tensor on the gradient's own device, for hookcli.stats to fetch once the pass is over.
inline at::Tensor moments_on_device(const at::Tensor& tensor) {
  const auto wide = tensor.to(tensor.device().type() == at::kMPS ? at::kFloat : at::kDouble).reshape({-1});
  const auto unusable = wide.isfinite().logical_not();
  const auto n = wide.isfinite().sum();
  const auto some = wide.masked_fill(unusable, 0.0);
  // In units of a power of two, as on the CPU; squares of other dtypes than double do not leave double's range.
  auto unit = at::ones({}, wide.options());
  if (tensor.scalar_type() == at::kDouble) {
    const auto peak = some.abs().amax();
    const auto next = peak.div(std::get<0>(peak.frexp()).mul(2)).clamp_min(std::numeric_limits<double>::min());
    unit = at::where(peak.gt(0), next, unit);
  }
  const auto units = some.div(unit);
  const auto mean = units.sum().div(n);
  const auto centred = units.sub(mean).masked_fill(unusable, 0.0);
  Statistics<at::Tensor> found;
  found.numel = at::full({}, wide.numel(), wide.options());
  found.mean = mean.mul(unit);
  found.std = centred.square().sum().div(n.sub(1).clamp_min(1)).sqrt().mul(unit);
  found.min = wide.masked_fill(unusable, kInfinity).amin();
  found.max = wide.masked_fill(unusable, -kInfinity).amax();
  found.l2 = units.square().sum().sqrt().mul(unit);
  found.zeros = wide.eq(0).sum();
  found.nan = wide.isnan().sum();
  found.inf = wide.isinf().sum();
  auto parts = in_order(found);
  for (auto& part : parts) part = part.to(wide.scalar_type());
  return at::stack(parts);
}

// The magnitudes of complex values, also of those that their own precision is too narrow for.
inline at::Tensor magnitudes(const at::Tensor& tensor) {
  const auto values = tensor.scalar_type() == at::kComplexHalf ? tensor.to(at::kComplexFloat) : tensor;
  const auto sizes = values.abs();
  const bool on_cpu = tensor.device().is_cpu();
  if (tensor.device().type() == at::kMPS || (on_cpu && sizes.sum().isfinite().item<bool>())) return sizes;
  const auto wide = values.to(at::kComplexDouble);
  const auto finite = at::real(wide).isfinite().logical_and(at::imag(wide).isfinite());
  const auto exact = wide.abs();
  return at::where(finite, exact.clamp_max(std::numeric_limits<double>::max()), exact);
}

// The tensor as strided real numbers, and how many zeros it implies without storing them.
inline std::pair<at::Tensor, int64_t> plain(const at::Tensor& tensor) {
  if (tensor.is_nested()) return plain(tensor.values());
  if (tensor.layout() == at::kMkldnn) return plain(tensor.to_dense());
  if (tensor.layout() != at::kStrided) {
    const auto stored = (tensor.layout() == at::kSparse ? tensor : tensor.to_sparse()).coalesce().values();
    return {plain(stored).first, tensor.numel() - stored.numel()};
  }
  if (tensor.is_complex()) return {magnitudes(tensor), 0};
  if (tensor.is_neg()) return {tensor.resolve_neg(), 0};
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16: return {tensor, 0};
    default: return {tensor.to(at::kDouble), 0};
  }
}

} // namespace hookcli
