// Vectors of 64 bytes, by the compiler's own where it has them, and the keywords of each compiler.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(_MSC_VER) && !defined(__clang__)
#define HOOKCLI_INLINE __forceinline
#else
#define HOOKCLI_INLINE inline __attribute__((always_inline))
#endif

// The compiler makes a version for each instruction set and the loader picks: no -march that another CPU cannot run.
#if defined(__x86_64__) && defined(__GLIBC__) && \
    ((defined(__clang__) && __clang_major__ >= 17) || (!defined(__clang__) && __GNUC__ >= 12))  // the first that can
#define HOOKCLI_CLONED
#define HOOKCLI_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HOOKCLI_CLONES
#endif

namespace hookcli {

template <typename T>
struct Lanes;

#if defined(__GNUC__) && !defined(HOOKCLI_PLAIN_VECTORS)

template <>
struct Lanes<float> {
  typedef float Vector __attribute__((vector_size(64)));
  typedef int32_t Mask __attribute__((vector_size(64)));
};
template <>
struct Lanes<double> {
  typedef double Vector __attribute__((vector_size(64)));
  typedef int64_t Mask __attribute__((vector_size(64)));
};

template <typename Vector>
HOOKCLI_INLINE Vector lower(const Vector& a, const Vector& b) {
  return a < b ? a : b;
}
template <typename Vector>
HOOKCLI_INLINE Vector higher(const Vector& a, const Vector& b) {
  return a > b ? a : b;
}

#else

// Loops that such a compiler unrolls.
template <typename T>
struct Plain {
  static constexpr int WIDTH = 64 / sizeof(T);
  T lane[WIDTH];

  T operator[](int64_t i) const { return lane[i]; }
#define HOOKCLI_EACH(expression) \
  for (int i = 0; i < WIDTH; ++i) made.lane[i] = (expression); \
  return made;
  HOOKCLI_INLINE friend Plain operator+(const Plain& a, const Plain& b) { Plain made; HOOKCLI_EACH(a.lane[i] + b.lane[i]) }
  HOOKCLI_INLINE friend Plain operator-(const Plain& a, const Plain& b) { Plain made; HOOKCLI_EACH(a.lane[i] - b.lane[i]) }
  HOOKCLI_INLINE friend Plain operator*(const Plain& a, const Plain& b) { Plain made; HOOKCLI_EACH(a.lane[i] * b.lane[i]) }
  HOOKCLI_INLINE friend Plain operator+(const Plain& a, T b) { Plain made; HOOKCLI_EACH(a.lane[i] + b) }
  HOOKCLI_INLINE friend Plain operator-(const Plain& a, T b) { Plain made; HOOKCLI_EACH(a.lane[i] - b) }
  HOOKCLI_INLINE friend Plain operator-(const Plain& a) { Plain made; HOOKCLI_EACH(-a.lane[i]) }
  HOOKCLI_INLINE friend Plain lower(const Plain& a, const Plain& b) {
    Plain made;
    HOOKCLI_EACH(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i])
  }
  HOOKCLI_INLINE friend Plain higher(const Plain& a, const Plain& b) {
    Plain made;
    HOOKCLI_EACH(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i])
  }
  HOOKCLI_INLINE Plain& operator+=(const Plain& other) { return *this = *this + other; }
};
template <>
struct Lanes<float> {
  using Vector = Plain<float>;
  using Mask = Plain<int32_t>;
};
template <>
struct Lanes<double> {
  using Vector = Plain<double>;
  using Mask = Plain<int64_t>;
};
// -1 where they are equal, as the compilers with vectors have it.
HOOKCLI_INLINE Plain<int32_t> operator==(const Plain<float>& a, const Plain<float>& b) {
  Plain<int32_t> made;
  constexpr int WIDTH = 16;
  HOOKCLI_EACH(-(a.lane[i] == b.lane[i]))
}
HOOKCLI_INLINE Plain<int64_t> operator==(const Plain<double>& a, const Plain<double>& b) {
  Plain<int64_t> made;
  constexpr int WIDTH = 8;
  HOOKCLI_EACH(-(a.lane[i] == b.lane[i]))
}
#undef HOOKCLI_EACH

#endif

// From an address of any alignment.
template <typename T>
HOOKCLI_INLINE typename Lanes<T>::Vector load(const T* from) {
  typename Lanes<T>::Vector loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

} // namespace hookcli
