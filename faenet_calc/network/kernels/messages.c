/* Sums over edges and derivatives of the activation, one pass each: what plain.py does, see there for the formulas.
 *
 * Arrays are contiguous, [rows, width] in row-major order; REAL is float or double. An edge's rows stay in the nearest
 * cache while everything about them is computed. Columns do not depend on each other, so each of `blocks` threads takes
 * some of them, and the order of additions is that of the edges. Sums over columns come per block, [blocks, rows].
 */
#include <stddef.h>
#include <stdint.h>

#ifndef REAL
#define REAL float
#endif

#define FROM(block) ((size_t)(block) * width / blocks)
#define SWISH(z, s) ((z) * (s))
#define FIRST(value, s) ((s) + (value) * (1 - (s)))
#define SECOND(z, value, s) (((z) - 2 * (value) + 2) * (s) * (1 - (s)))
#define COLUMNS(block) _Pragma("omp simd") for (size_t k = FROM(block); k < FROM((block) + 1); k++)
#define IN_BLOCKS _Pragma("omp parallel for num_threads(blocks) if (blocks > 1)") for (int64_t b = 0; b < blocks; b++)

typedef const REAL *restrict In;
typedef REAL *restrict Out;
typedef const int64_t *restrict Index;

void swish_slope(In slope, In z, In s, Out result, int64_t size, int64_t blocks) {
    const int64_t width = size;
    IN_BLOCKS COLUMNS(b) {
        const REAL value = SWISH(z[k], s[k]);
        result[k] = slope[k] * FIRST(value, s[k]);
    }
}

void swish_slope_backward(In second, In slope, In z, In s, Out of_slope, Out of_z, int64_t size, int64_t blocks) {
    const int64_t width = size;
    IN_BLOCKS COLUMNS(b) {
        const REAL value = SWISH(z[k], s[k]);
        of_slope[k] = second[k] * FIRST(value, s[k]);
        of_z[k] = second[k] * slope[k] * SECOND(z[k], value, s[k]);
    }
}

void messages(In z, In s, In x, In weight, Index centre, Index neighbor, Out total, int64_t edges, int64_t width,
              int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        const REAL w = weight ? weight[edge] : 1;
        In ze = z + edge * width, se = s + edge * width, xe = x + neighbor[edge] * width;
        Out sum = total + centre[edge] * width;
        COLUMNS(b) sum[k] += w * xe[k] * SWISH(ze[k], se[k]);
    }
}

void messages_slope(In slope, In z, In s, In x, In weight, Index centre, Index neighbor, Out of_z, Out of_x,
                    Out of_weight, int64_t edges, int64_t width, int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        const REAL w = weight ? weight[edge] : 1;
        In ze = z + edge * width, se = s + edge * width, xe = x + neighbor[edge] * width;
        In de = slope + centre[edge] * width;
        Out of_ze = of_z + edge * width, of_xe = of_x + neighbor[edge] * width;
        REAL along = 0;
        _Pragma("omp simd reduction(+ : along)") for (size_t k = FROM(b); k < FROM(b + 1); k++) {
            const REAL value = SWISH(ze[k], se[k]), both = xe[k] * de[k];
            along += both * value;
            of_ze[k] = w * both * FIRST(value, se[k]);
            of_xe[k] += w * de[k] * value;
        }
        if (weight) of_weight[b * edges + edge] = along;
    }
}

void messages_slope_backward(In slope, In z, In s, In x, In weight, In by_z, In by_x, In by_weight, Index centre,
                             Index neighbor, Out of_slope, Out of_z, Out of_x, Out of_weight, int64_t edges,
                             int64_t width, int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        const REAL w = weight ? weight[edge] : 1, by_w = weight ? by_weight[edge] : 0;
        In ze = z + edge * width, se = s + edge * width, by_ze = by_z + edge * width;
        In xe = x + neighbor[edge] * width, by_xe = by_x + neighbor[edge] * width, de = slope + centre[edge] * width;
        Out of_ze = of_z + edge * width, of_xe = of_x + neighbor[edge] * width, of_de = of_slope + centre[edge] * width;
        REAL along = 0;
        _Pragma("omp simd reduction(+ : along)") for (size_t k = FROM(b); k < FROM(b + 1); k++) {
            const REAL value = SWISH(ze[k], se[k]), first = FIRST(value, se[k]);
            const REAL turned = first * by_ze[k], moved = xe[k] * turned + value * by_xe[k];
            along += moved * de[k];
            of_de[k] += w * moved + by_w * xe[k] * value;
            of_xe[k] += (w * turned + by_w * value) * de[k];
            const REAL bent = w * xe[k] * SECOND(ze[k], value, se[k]) * by_ze[k];
            of_ze[k] = (bent + first * (w * by_xe[k] + by_w * xe[k])) * de[k];
        }
        if (weight) of_weight[b * edges + edge] = along;
    }
}

void add_looked_up_rows(In values, Index index, Out total, int64_t edges, int64_t width, int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        In from = values + index[edge] * width;
        Out to = total + edge * width;
        COLUMNS(b) to[k] += from[k];
    }
}

void look_up_two_rows(In one, Index one_index, In other, Index other_index, Out total, int64_t edges, int64_t width,
                      int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        In first = one + one_index[edge] * width, second = other + other_index[edge] * width;
        Out to = total + edge * width;
        COLUMNS(b) to[k] = first[k] + second[k];
    }
}

void add_rows_where_indexed(In rows, Index index, Out total, int64_t edges, int64_t width, int64_t blocks) {
    IN_BLOCKS for (int64_t edge = 0; edge < edges; edge++) {
        In from = rows + edge * width;
        Out to = total + index[edge] * width;
        COLUMNS(b) to[k] += from[k];
    }
}
