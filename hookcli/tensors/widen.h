// Runs of any number type and stride, made into runs of floats or doubles. Nothing here knows of PyTorch.
#pragma once

#include "vectors.h"

namespace hookcli {

template <typename T>
HOOKCLI_INLINE T same_bits(uint32_t from) {
  T to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

struct BFloat16 {
  uint16_t bits;
  HOOKCLI_INLINE operator float() const { return same_bits<float>(static_cast<uint32_t>(bits) << 16); }
};

// Subnormal numbers get their value by a subtraction, so that no float is subnormal on the way.
struct Half {
  uint16_t bits;
  HOOKCLI_INLINE operator float() const {
    const uint32_t size = bits & 0x7fffu, wide = size << 13;
    const float normal = same_bits<float>(wide + (112u << 23));
    const float subnormal = same_bits<float>(wide + (113u << 23)) - 0x1p-14f;
    const float infinite = same_bits<float>(wide + (224u << 23));  // or NaN
    const float value = size < 0x400u ? subnormal : size < 0x7c00u ? normal : infinite;
    return bits & 0x8000u ? -value : value;
  }
};

// A number type by PyTorch's name, and how it is read. Sums of `narrow` ones are taken in floats first.
#define HOOKCLI_TYPES(_) \
  _(float32, float, true) _(float16, Half, true) _(bfloat16, BFloat16, true) _(float64, double, false) \
  _(int16, int16_t, false) _(int32, int32_t, false) _(int64, int64_t, false)

// `byte` stands for all types of one byte: a table of 256 floats has their values.
enum class Type {
#define HOOKCLI_DECLARE(name, read, narrow) name,
  HOOKCLI_TYPES(HOOKCLI_DECLARE)
#undef HOOKCLI_DECLARE
  byte
};

inline bool is_narrow(Type type) {
#define HOOKCLI_CASE(name, read, narrow) if (type == Type::name) return narrow;
  HOOKCLI_TYPES(HOOKCLI_CASE)
#undef HOOKCLI_CASE
  return true;
}

inline int64_t size_of(Type type) {
#define HOOKCLI_CASE(name, read, narrow) if (type == Type::name) return sizeof(read);
  HOOKCLI_TYPES(HOOKCLI_CASE)
#undef HOOKCLI_CASE
  return 1;
}

template <typename S, typename T>
HOOKCLI_INLINE void widen_each(const char* from, int64_t stride, int64_t n, T* to) {
  if (stride == static_cast<int64_t>(sizeof(S))) {
    const S* x = reinterpret_cast<const S*>(from);
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(*reinterpret_cast<const S*>(from + i * stride));
  }
}

template <typename T>
HOOKCLI_INLINE void widen_any(Type type, const char* from, int64_t stride, int64_t n, T* to) {
  switch (type) {
#define HOOKCLI_CASE(name, read, narrow) case Type::name: return widen_each<read>(from, stride, n, to);
    HOOKCLI_TYPES(HOOKCLI_CASE)
#undef HOOKCLI_CASE
    case Type::byte: return;
  }
}

HOOKCLI_CLONES inline void widen(Type type, const char* from, int64_t stride, int64_t n, float* to) {
  widen_any(type, from, stride, n, to);
}
HOOKCLI_CLONES inline void widen(Type type, const char* from, int64_t stride, int64_t n, double* to) {
  widen_any(type, from, stride, n, to);
}

} // namespace hookcli
