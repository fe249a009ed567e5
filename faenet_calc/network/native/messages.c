/* Sums over edges and derivatives of the activation in one pass each; plain.py has the same functions and the formulas.
 *
 * Included for each instruction set and for REAL float and double, which is part of the functions' names: KERNEL().
 * Arrays are contiguous, [rows, width] in row-major order. An edge's rows stay in the nearest cache while everything
 * about them is computed. Columns are independent of each other: each of `blocks` threads takes some of them, and the
 * order of additions is that of the edges. Sums over columns come per block, [blocks, rows].
 */
#include <stddef.h>
#include <stdint.h>

#define JOIN_NAMES(name, real) NAME(name##_##real)
#define WITH_REAL(name, real) JOIN_NAMES(name, real)
#define KERNEL(name) WITH_REAL(name, REAL)

#define FROM(block) ((size_t)(block) * width / blocks)
#define SWISH(z, s) ((z) * (s))
#define FIRST(value, s) ((s) + (value) * (1 - (s)))
#define SECOND(z, value, s) (((z) - 2 * (value) + 2) * (s) * (1 - (s)))
#define COLUMNS(block) _Pragma("omp simd") for (size_t k = FROM(block); k < FROM((block) + 1); k++)
#define IN_BLOCKS _Pragma("omp parallel for num_threads(blocks) if (blocks > 1)") for (int64_t b = 0; b < blocks; b++)

#define In KERNEL(Input)
#define Out KERNEL(Output)
#define Index KERNEL(Indices)
typedef const REAL *restrict In;
typedef REAL *restrict Out;
typedef const int64_t *restrict Index;

void KERNEL(swish_backward)(In grad_output, In z, In s, Out result, int64_t size, int64_t blocks) {
    const int64_t width = size;
    IN_BLOCKS COLUMNS(b) {
        const REAL value = SWISH(z[k], s[k]);
        result[k] = grad_output[k] * FIRST(value, s[k]);
    }
}

void KERNEL(swish_double_backward)(In grad_grad, In grad_output, In z, In s, Out grad_grad_output, Out grad_z,
                                   int64_t size, int64_t blocks) {
    const int64_t width = size;
    IN_BLOCKS COLUMNS(b) {
        const REAL value = SWISH(z[k], s[k]);
        grad_grad_output[k] = grad_grad[k] * FIRST(value, s[k]);
        grad_z[k] = grad_grad[k] * grad_output[k] * SECOND(z[k], value, s[k]);
    }
}

void KERNEL(messages)(In z, In s, In x, In weight, Index centre, Index neighbor, Out total, int64_t edges,
                      int64_t width, int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        const REAL w = weight ? weight[edge] : 1;
        In ze = z + edge * width, se = s + edge * width, xe = x + neighbor[edge] * width;
        Out sum = total + centre[edge] * width;
        COLUMNS(b) sum[k] += w * xe[k] * SWISH(ze[k], se[k]);
    }
}

void KERNEL(messages_backward)(In grad_output, In z, In s, In x, In weight, Index centre, Index neighbor,
                               Out grad_z, Out grad_x, Out grad_weight, int64_t edges, int64_t width, int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        const REAL w = weight ? weight[edge] : 1;
        In ze = z + edge * width, se = s + edge * width, xe = x + neighbor[edge] * width;
        In de = grad_output + centre[edge] * width;
        Out grad_ze = grad_z + edge * width, grad_xe = grad_x + neighbor[edge] * width;
        REAL along = 0;
        _Pragma("omp simd reduction(+ : along)") for (size_t k = FROM(b); k < FROM(b + 1); k++) {
            const REAL value = SWISH(ze[k], se[k]), both = xe[k] * de[k];
            along += both * value;
            grad_ze[k] = w * both * FIRST(value, se[k]);
            grad_xe[k] += w * de[k] * value;
        }
        if (weight) grad_weight[b * edges + edge] = along;
    }
}

void KERNEL(messages_double_backward)(In grad_grad_z, In grad_grad_x, In grad_grad_weight, In grad_output, In z,
                                      In s, In x, In weight, Index centre, Index neighbor, Out grad_grad_output,
                                      Out grad_z, Out grad_x, Out grad_weight, int64_t edges, int64_t width,
                                      int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        const REAL w = weight ? weight[edge] : 1, gg_w = weight ? grad_grad_weight[edge] : 0;
        In ze = z + edge * width, se = s + edge * width, gg_ze = grad_grad_z + edge * width;
        In xe = x + neighbor[edge] * width, gg_xe = grad_grad_x + neighbor[edge] * width;
        In de = grad_output + centre[edge] * width;
        Out grad_ze = grad_z + edge * width, grad_xe = grad_x + neighbor[edge] * width;
        Out grad_grad_e = grad_grad_output + centre[edge] * width;
        REAL along = 0;
        _Pragma("omp simd reduction(+ : along)") for (size_t k = FROM(b); k < FROM(b + 1); k++) {
            const REAL value = SWISH(ze[k], se[k]), first = FIRST(value, se[k]);
            const REAL turned = first * gg_ze[k], moved = xe[k] * turned + value * gg_xe[k]; /* of σ and of the message */
            along += moved * de[k];
            grad_grad_e[k] += w * moved + gg_w * xe[k] * value;
            grad_xe[k] += (w * turned + gg_w * value) * de[k];
            const REAL bent = w * xe[k] * SECOND(ze[k], value, se[k]) * gg_ze[k];
            grad_ze[k] = (bent + first * (w * gg_xe[k] + gg_w * xe[k])) * de[k];
        }
        if (weight) grad_weight[b * edges + edge] = along;
    }
}

void KERNEL(gather_add)(In values, Index index, Out total, int64_t edges, int64_t width, int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        In from = values + index[edge] * width;
        Out to = total + edge * width;
        COLUMNS(b) to[k] += from[k];
    }
}

void KERNEL(gather_two)(In one, Index one_index, In other, Index other_index, Out total, int64_t edges,
                        int64_t width, int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        In first = one + one_index[edge] * width, second = other + other_index[edge] * width;
        Out to = total + edge * width;
        COLUMNS(b) to[k] = first[k] + second[k];
    }
}

void KERNEL(scatter_add)(In rows, Index index, Out total, int64_t edges, int64_t width, int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        In from = rows + edge * width;
        Out to = total + index[edge] * width;
        COLUMNS(b) to[k] += from[k];
    }
}

#undef JOIN_NAMES
#undef WITH_REAL
#undef KERNEL
#undef FROM
#undef SWISH
#undef FIRST
#undef SECOND
#undef COLUMNS
#undef IN_BLOCKS
#undef In
#undef Out
#undef Index
