// Counts of numbers by sign and power of two, and in bins of equal width, off their bits: histograms that merge exactly.
#pragma once

#include "vectors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace hookcli {

constexpr int kLowest = -1074, kSide = 1024 - kLowest;  // the exponents of doubles, with subnormal ones
constexpr int kFormats = 4;
constexpr int kPartBits = 5, kParts = 1 << kPartBits;  // of a power of two, by the highest bits of the mantissa
constexpr int kLinear = 2 * kParts;                    // bins of equal width for each sign

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
  static constexpr int MANTISSA = 23, EXPONENTS = 256, BIAS = 127, LANES = 4;
};
template <>
struct Layout<double> {
  using Bits = uint64_t;
  static constexpr int MANTISSA = 52, EXPONENTS = 2048, BIAS = 1023, LANES = 2;
};

// Counts by sign, exponent and part. LANES neighbours are counted apart: each would wait for the sum before it. A count is
// of 4 bytes and lies beside those of the other lanes, so that the parts in use stay in the nearest cache.
template <typename T>
constexpr int64_t kBins = int64_t(2) * Layout<T>::EXPONENTS * kParts;
constexpr int64_t kMost = int64_t(1) << 31;  // elements that are counted before the counts are added up
constexpr int64_t kFew = 2048;               // elements up to which tables cost more than they save

template <typename T>
HOOKCLI_INLINE typename Layout<T>::Bits bits_of(const T* x) {
  typename Layout<T>::Bits bits;
  std::memcpy(&bits, x, sizeof bits);
  return bits;
}

// The largest magnitude as bits, and the smallest other than 0, less one.
template <typename T>
struct Seen {
  typename Layout<T>::Bits peak = 0, least = std::numeric_limits<typename Layout<T>::Bits>::max();
};

template <typename T>
HOOKCLI_INLINE Seen<T> look_at_all(const T* x, int64_t n) {
  using Bits = typename Layout<T>::Bits;
  constexpr Bits SIZE = std::numeric_limits<Bits>::max() >> 1;
  Seen<T> seen;
  for (int64_t i = 0; i < n; ++i) {
    const Bits size = bits_of(x + i) & SIZE;
    seen.peak = std::max(seen.peak, size);
    seen.least = std::min(seen.least, static_cast<Bits>(size - 1));  // of 0 the highest number
  }
  return seen;
}

HOOKCLI_CLONES inline Seen<float> look(const float* x, int64_t n) { return look_at_all(x, n); }
HOOKCLI_CLONES inline Seen<double> look(const double* x, int64_t n) { return look_at_all(x, n); }

template <typename T>
inline void count_fields(const T* x, int64_t n, uint32_t* tables) {
  constexpr int SHIFT = Layout<T>::MANTISSA - kPartBits, LANES = Layout<T>::LANES;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    for (int lane = 0; lane < LANES; ++lane) ++tables[LANES * (bits_of(x + i + lane) >> SHIFT) + lane];
  }
  for (; i < n; ++i) ++tables[LANES * (bits_of(x + i) >> SHIFT)];
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

// Counts in bins of equal width, for each sign: kLinear from 0 until twice the highest power of two.
struct Linear {
  int top = kLowest - 1;  // the highest exponent
  int64_t counts[2][kLinear] = {};

  void raise(int exponent) {
    const int by = std::min(exponent - top, kPartBits + 1);
    if (by <= 0) return;
    top = exponent;
    for (auto& side : counts) {
      for (int i = 0; i < kLinear; ++i) side[i >> by] += std::exchange(side[i], 0);
    }
  }

  // Adds numbers of this exponent and part; the exponent is `top` at most.
  void put(bool positive, int exponent, int part, int64_t count) {
    counts[positive][(kParts + part) >> std::min(top - exponent, kPartBits + 1)] += count;
  }

  void add(Linear other) {
    raise(other.top);
    other.raise(top);
    for (int side : {0, 1}) {
      for (int i = 0; i < kLinear; ++i) counts[side][i] += other.counts[side][i];
    }
  }
};

// The counts that one thread makes.
class Exponents {
 public:
  std::vector<int64_t> counts = std::vector<int64_t>(2 * kSide);  // negative ones, positive ones; from kLowest on
  Linear linear;
  int64_t overflows[kFormats] = {};

  // Makes room for counts of so many numbers of this type: `count` takes no memory, since an exception must not leave a thread.
  template <typename T>
  void prepare(int64_t n) {
    if (n > kFew) tables_.resize(Layout<T>::LANES * kBins<T>);
  }

  template <typename T>
  void count(const T* x, int64_t n, const Limits& limits) {
    using Bits = typename Layout<T>::Bits;
    if ((pending_ += n) > kMost) {
      finish<T>();
      pending_ = n;
    }
    const auto seen = look(x, n);
    if (!tables_.empty()) count_fields(x, n, tables_.data());
    constexpr int SHIFT = Layout<T>::MANTISSA - kPartBits;
    first_ = std::min<int64_t>(first_, seen.least >> SHIFT);
    last_ = std::max<int64_t>(last_, seen.peak >> SHIFT);
    Bits limit;
    const T least = static_cast<T>(limits.least());  // rounded down at most: then one look too many
    std::memcpy(&limit, &least, sizeof limit);
    if (seen.peak >= limit) add_overflows(x, n, limits);
    if (tables_.empty() || seen.least < (Bits(1) << Layout<T>::MANTISSA) - 1) add_each(x, n);
  }

  // Adds the tables up, from the highest exponent down.
  template <typename T>
  void finish() {
    constexpr int LANES = Layout<T>::LANES;
    constexpr int64_t FINITE = (Layout<T>::EXPONENTS - 1) * kParts;
    if (tables_.empty()) return;
    for (int64_t bin = std::min(last_, FINITE - 1); bin >= std::max<int64_t>(first_, kParts); --bin) {
      for (const int64_t side : {kBins<T> / 2, int64_t(0)}) {
        int64_t found = 0;
        for (int lane = 0; lane < LANES; ++lane) found += std::exchange(tables_[LANES * (side + bin) + lane], 0);
        if (found) put(side == 0, static_cast<int>(bin / kParts) - Layout<T>::BIAS, bin % kParts, found);
      }
    }
  }

  void add(const Exponents& other) {
    for (int i = 0; i < 2 * kSide; ++i) counts[i] += other.counts[i];
    for (int f = 0; f < kFormats; ++f) overflows[f] += other.overflows[f];
    linear.add(other.linear);
  }

 private:
  std::vector<uint32_t> tables_;
  int64_t pending_ = 0, first_ = std::numeric_limits<int64_t>::max(), last_ = 0;  // bins in use

  template <typename T>
  void add_overflows(const T* x, int64_t n, const Limits& limits) {
    for (int f = 0; f < kFormats; ++f) {
      T from = static_cast<T>(limits.from[f]);
      if (from < limits.from[f]) from = std::nextafter(from, std::numeric_limits<T>::infinity());
      overflows[f] += numbers_from(x, n, from);
    }
  }

  // Adds the numbers that no table counts: subnormal ones, and all where there is no table.
  template <typename T>
  void add_each(const T* x, int64_t n) {
    using Bits = typename Layout<T>::Bits;
    constexpr Bits SIZE = std::numeric_limits<Bits>::max() >> 1;
    constexpr int MANTISSA = Layout<T>::MANTISSA;
    for (int64_t i = 0; i < n; ++i) {
      const Bits bits = bits_of(x + i), size = bits & SIZE;
      const int field = static_cast<int>(size >> MANTISSA);
      if (size == 0 || field == Layout<T>::EXPONENTS - 1 || (field && !tables_.empty())) continue;
      int highest = MANTISSA;  // bit
      if (!field) while (!(size >> highest)) --highest;
      const Bits part = field ? size >> (MANTISSA - kPartBits) : size << kPartBits >> highest;
      put(bits == size, std::max(field, 1) - Layout<T>::BIAS - MANTISSA + highest, static_cast<int>(part % kParts), 1);
    }
  }

  void put(bool positive, int exponent, int part, int64_t count) {
    counts[positive * kSide + exponent - kLowest] += count;
    linear.raise(exponent);
    linear.put(positive, exponent, part, count);
  }
};

} // namespace hookcli
