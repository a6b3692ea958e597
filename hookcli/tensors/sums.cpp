// The sums that hookcli/tensors/sums.py asks for, as a library of their own: built when hookcli is installed, whatever PyTorch.
#include "lanes.h"

#if defined(_WIN32)
#define HOOKCLI_EXPORT __declspec(dllexport)
#else
#define HOOKCLI_EXPORT __attribute__((visibility("default")))
#endif

// low, high, total, squares, zeros: hookcli.sums.Sums. The name says which version of this they agree on.
extern "C" HOOKCLI_EXPORT void hookcli_sums_1(const float* x, int64_t n, double* out) {
  hookcli::Sums sums;
  hookcli::sum_floats(x, n, sums);
  out[0] = sums.low;
  out[1] = sums.high;
  out[2] = sums.total;
  out[3] = sums.squares;
  out[4] = sums.zeros;
}
