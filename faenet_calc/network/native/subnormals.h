/* Floating-point numbers below the smallest normal one become zero.
 *
 * Where an activation saturates, its derivatives pass through 1e-38 to 1e-45. Arithmetic with such numbers takes a
 * hundred times longer on Intel processors (a training step 6 times), and they change no result.
 */
#ifndef FAENET_SUBNORMALS_H
#define FAENET_SUBNORMALS_H
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define SUBNORMALS_ARE_ZERO 0x8040u /* flush to zero, denormals are zero */
#endif

/* Sets the mode of this thread and returns the one before. */
static inline uint64_t flush_subnormals(void) {
    uint64_t before = 0;
#if defined(__x86_64__)
    before = _mm_getcsr();
    _mm_setcsr((unsigned)before | SUBNORMALS_ARE_ZERO);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | (UINT64_C(1) << 24)));
#endif
    return before;
}

static inline void restore_subnormals(uint64_t before) {
#if defined(__x86_64__)
    _mm_setcsr((unsigned)before);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
#else
    (void)before;
#endif
}
#endif
