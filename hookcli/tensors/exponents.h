// Counts of numbers by sign and power of two, off the bits of their exponents: a histogram that merges exactly.
#pragma once

#include "vectors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace hookcli {

constexpr int kLowest = -1074, kSide = 1024 - kLowest;  // the exponents of doubles, with subnormal ones
constexpr int kFormats = 4;

// From these magnitudes on, a number is too large for each of the narrower formats.
struct Limits {
  double from[kFormats];

  double least() const { return *std::min_element(from, from + kFormats); }
};

template <typename T>
struct Layout;
template <>
struct Layout<float> {
  using Bits = uint32_t;
  static constexpr int MANTISSA = 23, EXPONENTS = 256, BINS = 512, BIAS = 127;
};
template <>
struct Layout<double> {
  using Bits = uint64_t;
  static constexpr int MANTISSA = 52, EXPONENTS = 2048, BINS = 4096, BIAS = 1023;
};

// Neighbours are counted in tables of their own: in one, each would wait for the sum before it.
constexpr int kTables = 4;

template <typename T>
HOOKCLI_INLINE typename Layout<T>::Bits bits_of(const T* x) {
  typename Layout<T>::Bits bits;
  std::memcpy(&bits, x, sizeof bits);
  return bits;
}

// The largest magnitude as bits, and whether there is a subnormal number.
template <typename T>
struct Seen {
  typename Layout<T>::Bits peak = 0, subnormal = 0;
};

template <typename T>
HOOKCLI_INLINE Seen<T> count_all_fields(const T* x, int64_t n, int64_t* tables) {
  using Bits = typename Layout<T>::Bits;
  constexpr int MANTISSA = Layout<T>::MANTISSA, BINS = Layout<T>::BINS;
  constexpr Bits SIZE = std::numeric_limits<Bits>::max() >> 1, NORMAL = Bits(1) << MANTISSA;
  Seen<T> seen;
  for (int64_t i = 0; i < n; ++i) {
    const Bits size = bits_of(x + i) & SIZE;
    seen.peak = std::max(seen.peak, size);
    seen.subnormal |= static_cast<Bits>(size - 1 < NORMAL - 1);  // neither 0 nor normal
  }
  int64_t i = 0;
  for (; i + kTables <= n; i += kTables) {
    ++tables[bits_of(x + i) >> MANTISSA];
    ++tables[BINS + (bits_of(x + i + 1) >> MANTISSA)];
    ++tables[2 * BINS + (bits_of(x + i + 2) >> MANTISSA)];
    ++tables[3 * BINS + (bits_of(x + i + 3) >> MANTISSA)];
  }
  for (; i < n; ++i) ++tables[bits_of(x + i) >> MANTISSA];
  return seen;
}

HOOKCLI_CLONES inline Seen<float> count_fields(const float* x, int64_t n, int64_t* tables) {
  return count_all_fields(x, n, tables);
}
HOOKCLI_CLONES inline Seen<double> count_fields(const double* x, int64_t n, int64_t* tables) {
  return count_all_fields(x, n, tables);
}

// How many finite numbers have this magnitude or more.
template <typename T>
HOOKCLI_INLINE int64_t all_numbers_from(const T* x, int64_t n, T limit) {
  int64_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T size = x[i] < 0 ? -x[i] : x[i];
    found += (size >= limit) & (size <= std::numeric_limits<T>::max());
  }
  return found;
}

HOOKCLI_CLONES inline int64_t numbers_from(const float* x, int64_t n, float limit) {
  return all_numbers_from(x, n, limit);
}
HOOKCLI_CLONES inline int64_t numbers_from(const double* x, int64_t n, double limit) {
  return all_numbers_from(x, n, limit);
}

// The counts that one thread makes.
class Exponents {
 public:
  std::vector<int64_t> counts = std::vector<int64_t>(2 * kSide);  // negative ones, positive ones; from kLowest on
  int64_t overflows[kFormats] = {};

  // Makes room for counts of this type: `count` takes no memory, since an exception must not leave a thread.
  template <typename T>
  void prepare() {
    table(T()).resize(kTables * Layout<T>::BINS);
  }

  template <typename T>
  void count(const T* x, int64_t n, const Limits& limits) {
    using Bits = typename Layout<T>::Bits;
    const auto seen = count_fields(x, n, table(T()).data());
    Bits limit;
    const T least = static_cast<T>(limits.least());  // rounded down at most: then one look too many
    std::memcpy(&limit, &least, sizeof limit);
    if (seen.peak >= limit) add_overflows(x, n, limits);
    if (seen.subnormal) add_subnormals(x, n);
  }

  // Adds the tables to the counts, and another thread's counts.
  void finish() {
    add_fields<float>();
    add_fields<double>();
  }
  void add(const Exponents& other) {
    for (int i = 0; i < 2 * kSide; ++i) counts[i] += other.counts[i];
    for (int f = 0; f < kFormats; ++f) overflows[f] += other.overflows[f];
  }

 private:
  std::vector<int64_t> floats_, doubles_;

  std::vector<int64_t>& table(float) { return floats_; }
  std::vector<int64_t>& table(double) { return doubles_; }

  template <typename T>
  void add_overflows(const T* x, int64_t n, const Limits& limits) {
    for (int f = 0; f < kFormats; ++f) {
      T from = static_cast<T>(limits.from[f]);
      if (from < limits.from[f]) from = std::nextafter(from, std::numeric_limits<T>::infinity());
      overflows[f] += numbers_from(x, n, from);
    }
  }

  template <typename T>
  void add_subnormals(const T* x, int64_t n) {
    using Bits = typename Layout<T>::Bits;
    constexpr Bits SIZE = std::numeric_limits<Bits>::max() >> 1;
    for (int64_t i = 0; i < n; ++i) {
      const Bits bits = bits_of(x + i);
      const Bits size = bits & SIZE;
      if (size == 0 || size >> Layout<T>::MANTISSA) continue;
      int exponent = 1 - Layout<T>::BIAS - Layout<T>::MANTISSA;  // of the lowest bit
      for (Bits rest = size; rest >>= 1;) ++exponent;
      ++at(bits == size, exponent);
    }
  }

  template <typename T>
  void add_fields() {
    const auto& tables = table(T());
    constexpr int ALL = Layout<T>::EXPONENTS;
    for (size_t i = 0; i < tables.size(); ++i) {
      const int field = i % ALL;
      if (tables[i] && field != 0 && field != ALL - 1) at((i / ALL) % 2 == 0, field - Layout<T>::BIAS) += tables[i];
    }
  }

  int64_t& at(bool positive, int exponent) { return counts[positive * kSide + exponent - kLowest]; }
};

} // namespace hookcli
