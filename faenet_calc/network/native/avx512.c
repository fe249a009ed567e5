/* fused.c, training.c, orthogonal.c, examine.c, components.c and messages.c for avx512. */
#if defined(__x86_64__) || defined(__i386__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#endif
#include <immintrin.h>
#define NAME(name) name##_avx512
#define LANES 16
#define ROWS 12
#include "fused.c"
#include "training.c"
#include "orthogonal.c"
#include "examine.c"
#include "components.c"
#define REAL float
#include "messages.c"
#undef REAL
#define REAL double
#include "messages.c"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
