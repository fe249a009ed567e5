/* fused.c, training.c, orthogonal.c, examine.c, components.c and messages.c for avx2. */
#if defined(__x86_64__) || defined(__i386__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define NAME(name) name##_avx2
#define LANES 8
#define ROWS 6
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
