// The statistics that hookcli/tensors/library.py loads, as a library of their own: built with hookcli, for any PyTorch.
#include "exponents.h"
#include "moments.h"
#include "threads.h"
#include "widen.h"

#include <type_traits>
#include <vector>

#if defined(_WIN32)
#define HOOKCLI_EXPORT extern "C" __declspec(dllexport)
#else
#define HOOKCLI_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace hookcli {

constexpr int64_t kBlock = 1 << 16;  // elements; sums of blocks are added in their order, however many threads there are
constexpr int64_t kAlone = 1 << 18;  // elements up to which waking threads costs more than they save
constexpr int64_t kRun = 4096;       // elements of a buffer that stays in the nearest cache
constexpr int kDims = 16;            // of memory with gaps

inline int threads_for(int64_t n, int threads) { return n > kAlone ? threads : 1; }
inline int64_t blocks_of(int64_t n) { return (n + kBlock - 1) / kBlock; }

// Numbers in memory: one after another, or with gaps between them, in rows.
struct Memory {
  const char* data;
  int64_t n;
  Type type;
  int dims = 0;  // without gaps
  const int64_t *sizes = nullptr, *strides = nullptr;  // of each dimension, in elements; the last one is a row
  const float* bytes = nullptr;  // the value of each byte, for numbers of one byte
  int threads = 1;
  std::vector<Exponents>* exponents = nullptr;  // one for each thread, or none
  const Limits* limits = nullptr;
  mutable bool counted = false;

  bool narrow() const { return is_narrow(type); }

  double first() const {
    double found = 0;
    read(0, 1, &found);
    return found;
  }

  // Numbers without gaps: as they are, or made floats.
  const float* floats(int64_t from, int64_t length, float* to) const {
    return type == Type::float32 ? reinterpret_cast<const float*>(data) + from : read(from, length, to);
  }

  // Counts exponents, too, on the first way through the numbers: as floats, if these are narrow.
  template <typename T, typename Part, typename Reduce>
  Part over(const Reduce& reduce) const {
    std::vector<Part> parts(blocks_of(n));
    const bool as_is = !dims && type == (std::is_same_v<T, float> ? Type::float32 : Type::float64);
    const bool counts = exponents && !counted;
    const auto work = [&](int64_t block, int worker) {
      alignas(64) T buffer[kRun];
      const int64_t begin = block * kBlock, end = std::min(begin + kBlock, n);
      const int64_t step = as_is && !counts ? kBlock : kRun;
      for (int64_t i = begin; i < end; i += step) {
        const int64_t length = std::min(step, end - i);
        const T* x = as_is ? reinterpret_cast<const T*>(data) + i : read(i, length, buffer);
        reduce(x, length, parts[block]);
        if (counts) (*exponents)[worker].count(x, length, *limits);
      }
    };
    for_each_block(blocks_of(n), threads, work);
    counted = true;
    Part whole;
    for (const Part& part : parts) whole.add(part);
    return whole;
  }

  template <typename T>
  const T* read(int64_t from, int64_t length, T* to) const {
    if (!dims) {
      read_row(data + from * size_of(type), 1, length, to);
      return to;
    }
    int64_t index[kDims], *const column = index + dims - 1;
    for (int d = dims - 1; d >= 0; from /= sizes[d], --d) index[d] = from % sizes[d];
    for (int64_t done = 0; done < length; *column = 0) {
      int64_t offset = 0;
      for (int d = 0; d < dims; ++d) offset += index[d] * strides[d];
      const int64_t piece = std::min(length - done, sizes[dims - 1] - *column);
      read_row(data + offset * size_of(type), strides[dims - 1], piece, to + done);
      done += piece;
      for (int d = dims - 2; d >= 0 && ++index[d] == sizes[d]; --d) index[d] = 0;
    }
    return to;
  }

  template <typename T>
  void read_row(const char* row, int64_t stride, int64_t length, T* to) const {
    if (type == Type::byte) {
      for (int64_t i = 0; i < length; ++i) to[i] = bytes[static_cast<uint8_t>(row[i * stride])];
    } else {
      widen(type, row, stride * size_of(type), length, to);
    }
  }
};

// Writes the lowest exponent and the number of exponents, the overflows, and the counts of negative and positive numbers:
// in bins of equal width, and by exponents.
inline void write_histogram(std::vector<Exponents>& parts, bool narrow, int64_t* out) {
  Exponents& whole = parts[0];
  for (Exponents& part : parts) narrow ? part.finish<float>() : part.finish<double>();
  for (size_t i = 1; i < parts.size(); ++i) whole.add(parts[i]);
  int low = 0, high = kSide;
  const auto empty = [&](int i) { return !whole.counts[i] && !whole.counts[kSide + i]; };
  while (low < high && empty(low)) ++low;
  while (low < high && empty(high - 1)) --high;
  *out++ = low < high ? low + kLowest : 0;
  *out++ = high - low;
  out = std::copy(whole.overflows, whole.overflows + kFormats, out);
  for (const auto& side : whole.linear.counts) out = std::copy(side, side + kLinear, out);
  for (int side : {0, kSide}) out = std::copy(&whole.counts[side + low], &whole.counts[side + high], out);
}

#define HOOKCLI_SUM(name, type)                                                                 \
  HOOKCLI_CLONES inline uint64_t name(const type* x, const uint64_t* places, int64_t n) {       \
    uint64_t sum = 0;                                                                           \
    for (int64_t i = 0; i < n; ++i) sum += static_cast<uint64_t>(int64_t{x[i]}) * places[i];    \
    return sum;                                                                                 \
  }
HOOKCLI_SUM(sum_of_bytes, uint8_t)
HOOKCLI_SUM(sum_of_halves, int16_t)
HOOKCLI_SUM(sum_of_words, int32_t)

}  // namespace hookcli

using namespace hookcli;

#define HOOKCLI_NAME(name) " " #name
#define HOOKCLI_TYPE(name, read, narrow) " " #name
#define HOOKCLI_PUT(name) *out++ = found.name;

// Number types, and what `out` gets, each name after a space: Python uses a function only where these are the names that
// it knows.
HOOKCLI_EXPORT const char* const hookcli_types = &HOOKCLI_TYPES(HOOKCLI_TYPE) " byte"[1];
HOOKCLI_EXPORT const char* const hookcli_strided_statistics_fields = &HOOKCLI_STATISTICS(HOOKCLI_NAME)[1];
HOOKCLI_EXPORT const char* const hookcli_distance_of_types_fields = &HOOKCLI_APART(HOOKCLI_NAME)[1];
HOOKCLI_EXPORT const int64_t hookcli_histogram_sizes[] = {kFormats, kLinear, kSide};

// Have the threads of PyTorch's OpenMP runtime do the work. `parallel`: its GOMP_parallel.
HOOKCLI_EXPORT void hookcli_use_openmp(void* parallel) { Threads::own().openmp = reinterpret_cast<OpenMP>(parallel); }

// The statistics of `n` numbers, and with `limits` their histogram. False for too many dimensions, and if there is no
// memory for it.
HOOKCLI_EXPORT bool hookcli_strided_statistics(
    const void* data, int64_t n, int dims, const int64_t* sizes, const int64_t* strides, int type, const float* bytes,
    int threads, const Limits* limits, double* out, int64_t* histogram) {
  if (dims > kDims) return false;
  try {
    threads = threads_for(n, threads);
    std::vector<Exponents> exponents(limits ? threads : 0);
    const bool narrow = is_narrow(static_cast<Type>(type));
    for (Exponents& each : exponents) narrow ? each.prepare<float>(n) : each.prepare<double>(n);
    const Memory memory = {
        static_cast<const char*>(data), n, static_cast<Type>(type), dims, sizes, strides, bytes, threads, limits ? &exponents : nullptr, limits};
    const Moments found = moments(memory);
    HOOKCLI_STATISTICS(HOOKCLI_PUT)
    if (limits) write_histogram(exponents, narrow, histogram);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// How far two runs of narrow numbers are apart. False if there is no memory for it.
HOOKCLI_EXPORT bool hookcli_distance_of_types(
    const void* a, int type_a, const void* b, int type_b, int64_t n, int threads, double* out) {
  try {
    std::vector<Apart> parts(blocks_of(n));
    const Memory x = {static_cast<const char*>(a), n, static_cast<Type>(type_a)};
    const Memory y = {static_cast<const char*>(b), n, static_cast<Type>(type_b)};
    const auto work = [&](int64_t block, int) {
      alignas(64) float buffers[2][kRun];
      const int64_t end = std::min((block + 1) * kBlock, n);
      for (int64_t i = block * kBlock; i < end; i += kRun) {
        const int64_t length = std::min(kRun, end - i);
        compare_floats(x.floats(i, length, buffers[0]), y.floats(i, length, buffers[1]), length, parts[block]);
      }
    };
    for_each_block(blocks_of(n), threads_for(n, threads), work);
    Apart found;
    for (const Apart& part : parts) found.add(part);
    HOOKCLI_APART(HOOKCLI_PUT)
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Sums of `n` integers of 1 (unsigned), 2 or 4 bytes times the numbers of their places, modulo 2^64: one for each row of
// `length`.
static void row_sums(
    const void* data, int size, int64_t n, const uint64_t* places, int64_t length, int threads, uint64_t* out) {
  constexpr int64_t kRows = 4, kPiece = 512;  // of some rows piece by piece: its places then stay in the fastest cache
  const int64_t rows = (n + length - 1) / length;
  const auto work = [&](int64_t group, int) {
    const int64_t first = group * kRows, last = std::min(first + kRows, rows);
    std::fill(out + first, out + last, 0);
    for (int64_t piece = 0; piece < length; piece += kPiece) {
      for (int64_t row = first; row < last; ++row) {
        const int64_t from = row * length + piece, count = std::min({kPiece, length - piece, n - from});
        if (count <= 0) break;  // past the end of the last row
        out[row] += size == 1 ? sum_of_bytes(static_cast<const uint8_t*>(data) + from, places + piece, count)
            : size == 2       ? sum_of_halves(static_cast<const int16_t*>(data) + from, places + piece, count)
                              : sum_of_words(static_cast<const int32_t*>(data) + from, places + piece, count);
      }
    }
  };
  for_each_block((rows + kRows - 1) / kRows, threads_for(n, threads), work);
}

// For each of `number` stretches of memory the sum of its rows' sums, each times the number of its row; what comes before
// the first row is the number of the first place.
HOOKCLI_EXPORT void hookcli_checksums(
    int64_t number, const void* const* data, const int64_t* sizes, const int64_t* lengths, const uint64_t* places,
    int64_t length, const uint64_t* of_rows, int threads, uint64_t* out) {
  std::vector<uint64_t> sums;
  for (int64_t i = 0; i < number; ++i) {
    sums.resize((lengths[i] + length - 1) / length);
    row_sums(data[i], static_cast<int>(sizes[i]), lengths[i], places, length, threads, sums.data());
    out[i] = places[0] * of_rows[0];
    for (size_t row = 0; row < sums.size(); ++row) out[i] += sums[row] * of_rows[row + 1];
  }
}

// The widest instructions that the loops use here.
HOOKCLI_EXPORT const char* hookcli_instructions() {
#if defined(__aarch64__) || defined(_M_ARM64)
  return "NEON";
#elif defined(HOOKCLI_CLONED)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? "AVX-512"
      : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")           ? "AVX2"
                                                                                  : "SSE2";
#elif defined(__x86_64__) || defined(_M_X64)
  return "SSE2";
#else
  return "none";
#endif
}
