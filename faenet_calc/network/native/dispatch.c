/* What __init__.py needs to know about the library. */

/* The best instruction set of this processor, as an index of INSTRUCTION_SETS. */
int faenet_instruction_set(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return 0;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 2;
}

int faenet_has_threads(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

/* Checksum of the sources that this library was built from. */
unsigned faenet_sources(void) { return SOURCES_CHECKSUM; }
