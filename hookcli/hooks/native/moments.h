// Moments of a gradient: what hookcli/tensors/stats.py measures, by the same definition, without the GIL.
#pragma once

#include "../../tensors/moments.h"
#include "../../tensors/widen.h"

#include <ATen/Tensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/real.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/where.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hookcli {

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

constexpr int64_t kGrain = 1 << 16;  // elements for a thread, below which waking it costs more than it saves

// The numbers of a strided CPU tensor of float, double, half or bfloat16, read in PyTorch's own threads.
// The iterator's loop is in libtorch: compiled here, at::parallel_for would need an OpenMP runtime beside torch's own.
struct Elements {
  const at::Tensor& tensor;

  bool narrow() const { return is_narrow(type()); }

  double first() const {
    double found;
    widen(type(), static_cast<const char*>(tensor.const_data_ptr()), 0, 1, &found);
    return found;
  }

  template <typename T, typename Part, typename Reduce>
  Part over(const Reduce& reduce) const {
    constexpr int64_t RUN = 4096;
    const bool as_is = type() == (std::is_same_v<T, float> ? Type::float32 : Type::float64);
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
          widen(type(), start + i * strides[0], strides[0], n, buffer);
          reduce(buffer, n, part);
        }
      }
      std::lock_guard<std::mutex> lock(mutex);
      whole.add(part);
    };
    iterator.for_each(rows, kGrain);
    return whole;
  }

 private:
  Type type() const {
    switch (tensor.scalar_type()) {
      case at::kFloat: return Type::float32;
      case at::kHalf: return Type::float16;
      case at::kBFloat16: return Type::bfloat16;
      default: return Type::float64;
    }
  }
};

// One float64 tensor on the gradient's own device, for hookcli.stats to fetch once the pass is over: in few passes, as
// hookcli/tensors/devices/launch.py has them. Elements that are not finite count as the least finite one, and are
// taken out of the sums again.
inline at::Tensor moments_on_device(const at::Tensor& tensor) {
  const auto kind = tensor.device().type() == at::kMPS ? at::kFloat : at::kDouble;
  const auto some = tensor.nan_to_num(kInfinity, kInfinity, kInfinity);
  const auto low = some.amin(), lost = some.eq(kInfinity), missing = lost.sum();
  some.masked_fill_(lost, low);
  const auto n = missing.neg().add(tensor.numel());
  auto copy = some.to(kind);
  // In units of a power of two, as on the CPU; squares of other dtypes than double do not leave double's range.
  auto unit = at::ones({}, copy.options());
  if (tensor.scalar_type() == at::kDouble) {
    const auto peak = some.abs().amax();
    const auto next = peak.div(std::get<0>(peak.frexp()).mul(2)).clamp_min(std::numeric_limits<double>::min());
    unit = at::where(peak.gt(0), next, unit);
    copy = copy.div(unit);
  }
  const auto [variance, middle] = at::var_mean(copy, at::OptionalIntArrayRef(), at::Scalar(0));
  const auto least = low.to(kind).div(unit), mean = middle.add(missing.mul(middle.sub(least)).div(n));
  const auto shifted = missing.mul(least.sub(middle).square()).add(n.mul(mean.sub(middle).square()));
  const auto squares = variance.mul(tensor.numel()).sub(shifted).clamp_min(0);
  Statistics<at::Tensor> found;
  found.numel = at::full({}, tensor.numel(), copy.options());
  found.mean = mean.mul(unit);
  found.std = squares.div(n.sub(1).clamp_min(1)).sqrt().mul(unit);
  found.min = low;
  found.max = some.amax();
  found.l2 = squares.add(n.mul(mean.square())).sqrt().mul(unit);
  found.zeros = some.eq(0).sum().sub(missing.mul(low.eq(0)));
  found.nan = tensor.ne(tensor).sum();
  found.inf = missing.sub(found.nan);
  auto parts = in_order(found);
  for (auto& part : parts) part = part.to(kind);
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
