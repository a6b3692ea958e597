// Runs of any layout and floating type, made into runs of floats or doubles.
#pragma once

#include "lanes.h"

#include <c10/core/ScalarType.h>

namespace hookcli {

#ifdef __FLT16_MANT_DIG__
using Half = _Float16;  // converted by one instruction where there is one
#else
using Half = at::Half;
#endif

template <typename S, typename T>
inline __attribute__((always_inline)) void widen(const char* from, int64_t stride, int64_t n, T* to) {
  if (stride == static_cast<int64_t>(sizeof(S))) {
    const S* x = reinterpret_cast<const S*>(from);
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(*reinterpret_cast<const S*>(from + i * stride));
  }
}

HOOKCLI_CLONES inline void widen_half(const char* from, int64_t stride, int64_t n, float* to) {
  widen<Half>(from, stride, n, to);
}
HOOKCLI_CLONES inline void widen_half(const char* from, int64_t stride, int64_t n, double* to) {
  widen<Half>(from, stride, n, to);
}

template <typename T>
void widen(at::ScalarType type, const char* from, int64_t stride, int64_t n, T* to) {
  switch (type) {
    case at::kFloat: return widen<float>(from, stride, n, to);
    case at::kHalf: return widen_half(from, stride, n, to);
    case at::kBFloat16: return widen<at::BFloat16>(from, stride, n, to);
    default: return widen<double>(from, stride, n, to);
  }
}

} // namespace hookcli
