// The sums that hookcli/tensors/sums.py asks for, as a library of their own: built with hookcli, for any PyTorch.
#include "lanes.h"

#if defined(_WIN32)
#define HOOKCLI_EXPORT __declspec(dllexport)
#else
#define HOOKCLI_EXPORT __attribute__((visibility("default")))
#endif

#define HOOKCLI_NAME(field, start, combine) " " #field
#define HOOKCLI_PUT(field, start, combine) *out++ = sums.field;

// What `out` gets, each name after a space: Python uses the library only where these are the names that it knows.
extern "C" HOOKCLI_EXPORT const char* const hookcli_sums_fields = &HOOKCLI_SUMS(HOOKCLI_NAME)[1];

extern "C" HOOKCLI_EXPORT void hookcli_sums(const float* x, int64_t n, double* out) {
  hookcli::Sums sums;
  hookcli::sum_floats(x, n, sums);
  HOOKCLI_SUMS(HOOKCLI_PUT)
}
