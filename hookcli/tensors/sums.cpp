// The sums that hookcli/tensors/library.py loads, as a library of their own: built with hookcli, for any PyTorch.
#include "lanes.h"

#if defined(_WIN32)
#define HOOKCLI_EXPORT __declspec(dllexport)
#else
#define HOOKCLI_EXPORT __attribute__((visibility("default")))
#endif

#define HOOKCLI_NAME(field, start, combine) " " #field
#define HOOKCLI_PUT(field, start, combine) *out++ = sums.field;

#define HOOKCLI_NAME_APART(field) " " #field
#define HOOKCLI_PUT_APART(field) *out++ = apart.field;

// What `out` gets, each name after a space: Python uses a function only where these are the names that it knows.
extern "C" HOOKCLI_EXPORT const char* const hookcli_sums_fields = &HOOKCLI_SUMS(HOOKCLI_NAME)[1];

extern "C" HOOKCLI_EXPORT void hookcli_sums(const float* x, int64_t n, double* out) {
  hookcli::Sums sums;
  hookcli::sum_floats(x, n, sums);
  HOOKCLI_SUMS(HOOKCLI_PUT)
}

extern "C" HOOKCLI_EXPORT const char* const hookcli_apart_fields = &HOOKCLI_APART(HOOKCLI_NAME_APART)[1];

extern "C" HOOKCLI_EXPORT void hookcli_apart(const float* a, const float* b, int64_t n, double* out) {
  hookcli::Apart apart;
  hookcli::compare_floats(a, b, n, apart);
  HOOKCLI_APART(HOOKCLI_PUT_APART)
}
