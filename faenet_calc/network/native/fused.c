/* Energies of FAENet in frames and their derivatives with respect to edge vectors, without intermediate tensors.
 *
 * Included once per instruction set, which defines NAME(), LANES (floats in a vector) and ROWS (rows of a product that
 * are kept in registers). Symbols are those of layers.py:
 *
 *     e_ij = σ(W2 [σ(W1 r_ij + b1)] + c(d_ij))             c: radial part, a cubic spline
 *     z_ij = Wg e_ij + a_i + b_j                           a, b: node parts of the filter
 *     m_i  = Σ_j w_ij x_j ⊙ σ(z_ij)                        x = σ(lin_down h) or h, w: envelope
 *     m_i  = σ(GraphNorm(m)_i)                             only with graph_norm
 *     h   += σ(lin_up m) or σ(other_mlp σ(lin_up m));  h += lin_out σ(lin_in h)
 *     energy: Σ_l mix_l lin2 σ(lin1 h_l), weighted by factors of the kinds of atoms and by w_lin h_l
 *
 * Without a second layer of the edge embedding e_ij = [σ(W1 r_ij + b1), …] and the radial part is one of z, with a
 * spline per interaction: z_ij = Wg σ(W1 r_ij + b1) + c(d_ij) + a_i + b_j.
 *
 * Frames are independent of each other: a group of them is evaluated forwards and backwards before the next one, in
 * tiles of edges that stay in the nearest cache. Edges are sorted by centre; a thread owns consecutive atoms and the
 * edges around them. Sums that arrive at neighbors go to an array of each thread and are added after a barrier.
 *
 * Two frames U and -U share e and Wg e: edge (i, j) in one is edge (j, i) in the other. The second frame then works on
 * the transposed graph. A node has a row per frame of such a pair: row = atom × signs + sign.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "fused.h"
#include "subnormals.h"

#define PANEL (2 * LANES) /* columns of a product that are kept in registers */
#define LINE 16           /* floats in a line of the cache */
#define LINES ((PANEL + LINE - 1) / LINE)
#define TILE 48           /* edges worked on together, a multiple of ROWS */
#define CHUNK (LANES == 16 ? 2 : 1) /* vectors of an edge that are worked on at the same time */
#define AHEAD 2           /* edges before whose turn the rows of their neighbors are fetched */

typedef float V __attribute__((vector_size(4 * LANES)));
typedef float VU __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t VI __attribute__((vector_size(4 * LANES)));

#define LOAD(p) (*(const VU *)(p))
#define STORE(p, v) (*(VU *)(p) = (v))
#define EACH_OF(c, n) for (int c = 0; c < (n); c++)
#define EACH(k, width) for (int64_t k = 0; k < (width); k += LANES)

/* 2^r of n vectors for |r| ≤ 1/2, with a relative error of 1e-7. */
static inline __attribute__((always_inline)) void NAME(powers_of_two)(const V *r, V *power, int n) {
    EACH_OF(c, n) power[c] = r[c] * 1.32764725e-3f + 9.67554096e-3f;
    EACH_OF(c, n) power[c] = power[c] * r[c] + 5.55071309e-2f;
    EACH_OF(c, n) power[c] = power[c] * r[c] + 2.40221202e-1f;
    EACH_OF(c, n) power[c] = power[c] * r[c] + 6.93146944e-1f;
    EACH_OF(c, n) power[c] = power[c] * r[c] + 1.0f;
}

/* σ of n vectors, step by step: the processor then finds work that is independent without looking far ahead. */
static inline __attribute__((always_inline)) void NAME(sigmoids)(const V *z, V *s, int n) {
    const V most = 126.0f + (V){0};
    V x[n], power[n];
    EACH_OF(c, n) x[c] = z[c] * -1.44269504088896341f;
#if LANES == 16
    V whole[n];
    EACH_OF(c, n) x[c] = (V)_mm512_min_ps((__m512)most, (__m512)x[c]);
    EACH_OF(c, n) whole[c] = (V)_mm512_roundscale_ps((__m512)x[c], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    EACH_OF(c, n) x[c] -= whole[c];
    NAME(powers_of_two)(x, power, n);
    EACH_OF(c, n) power[c] = (V)_mm512_scalef_ps((__m512)power[c], (__m512)whole[c]) + 1.0f;
    EACH_OF(c, n) s[c] = (V)_mm512_rcp14_ps((__m512)power[c]);
    EACH_OF(c, n) s[c] += s[c] * (1.0f - power[c] * s[c]);
#else
    VI exponent[n];
    EACH_OF(c, n) {
        const VI below = x[c] < most, above = x[c] > -most;
        const V low = (V)(((VI)x[c] & below) | ((VI)most & ~below)), limited = (V)(((VI)low & above) | ((VI)-most & ~above));
        const V shifted = limited + 12582912.0f; /* 1.5 × 2^23: rounds to an integer n, which its low bits hold */
        exponent[c] = ((VI)shifted << 23) + 0x3f800000;
        x[c] = limited - (shifted - 12582912.0f);
    }
    NAME(powers_of_two)(x, power, n);
    EACH_OF(c, n) s[c] = 1.0f / (1.0f + power[c] * (V)exponent[c]);
#endif
}

static inline V NAME(sigmoid)(V z) {
    V s;
    NAME(sigmoids)(&z, &s, 1);
    return s;
}

/* Asks for floats that are needed soon; their address need not be valid. */
static inline void NAME(prefetch)(const float *from, int64_t width) {
    for (int64_t k = 0; k < width; k += LINE) __builtin_prefetch(from + k);
}

static inline float NAME(total)(V v) {
    float part[LANES];
    memcpy(part, &v, sizeof part);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) part[k] += part[k + half];
    return part[0];
}

/* ---- products with packed weights: panels of PANEL columns, [columns / PANEL][depth][PANEL] ----
 *
 * The first blocks of rows fetch the panel that comes next in memory, which need not exist. */

#define PRODUCT(m)                                                                                                     \
    static inline __attribute__((always_inline)) void NAME(product_##m)(                                               \
        int64_t depth, const float *restrict a, int64_t lda, const float *restrict b, const float *restrict bias,      \
        float *restrict c, int64_t ldc, int add, const float *ahead) {                                                 \
        V left[m], right[m];                                                                                           \
        for (int r = 0; r < m; r++) {                                                                                  \
            if (add) {                                                                                                 \
                left[r] = LOAD(c + r * ldc), right[r] = LOAD(c + r * ldc + LANES);                                     \
            } else if (bias) {                                                                                         \
                left[r] = LOAD(bias), right[r] = LOAD(bias + LANES);                                                   \
            } else {                                                                                                   \
                left[r] = right[r] = (V){0};                                                                           \
            }                                                                                                          \
        }                                                                                                              \
        for (int64_t k = 0; k < depth; k++) {                                                                          \
            const V b0 = LOAD(b + k * PANEL), b1 = LOAD(b + k * PANEL + LANES);                                        \
            __builtin_prefetch(ahead + k * LINE, 0, 2);                                                                \
            for (int r = 0; r < m; r++) {                                                                              \
                const float value = a[r * lda + k];                                                                    \
                left[r] += value * b0, right[r] += value * b1;                                                         \
            }                                                                                                          \
        }                                                                                                              \
        for (int r = 0; r < m; r++) STORE(c + r * ldc, left[r]), STORE(c + r * ldc + LANES, right[r]);                 \
    }

PRODUCT(1)
PRODUCT(2)
PRODUCT(4)
PRODUCT(6)
#if ROWS == 12
PRODUCT(12)
#endif

/* c [rows, columns] = a [rows, depth] × packed weights + bias, or added to what c holds. */
static void NAME(product)(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda, const float *packed,
                          const float *bias, float *c, int64_t ldc, int add) {
    for (int64_t column = 0; column < columns; column += PANEL) {
        const float *panel = packed + column * depth, *offset = bias ? bias + column : NULL;
        int64_t row = 0;
#define BLOCK(m)                                                                                                       \
    for (; row + m <= rows; row += m)                                                                                  \
        NAME(product_##m)(depth, a + row * lda, lda, panel, offset, c + row * ldc + column, ldc, add,                  \
                          panel + PANEL * depth + row / m % LINES * LINE * depth       );
#if ROWS == 12
        BLOCK(12)
#endif
        BLOCK(6) BLOCK(4) BLOCK(2) BLOCK(1)
#undef BLOCK
    }
}

static inline void NAME(activate)(float *z, float *slope, int64_t size) {
    EACH(k, size) {
        const V value = LOAD(z + k), s = NAME(sigmoid)(value), y = value * s;
        STORE(z + k, y);
        STORE(slope + k, s + y * (1.0f - s));
    }
}

static float *NAME(pack)(float **free_memory, const float *weight, int64_t columns, int64_t depth, int transposed) {
    float *packed = *free_memory;
    *free_memory += columns * depth;
    for (int64_t column = 0; column < columns; column++)
        for (int64_t k = 0; k < depth; k++)
            packed[(column - column % PANEL) * depth + k * PANEL + column % PANEL] =
                transposed ? weight[k * columns + column] : weight[column * depth + k];
    return packed;
}

/* ---- a model: weights packed for products and for their transposes ---- */

typedef struct {
    float *filter, *node, *up, *extra, *in, *out;              /* y = x Wᵀ */
    float *filter_t, *node_t, *up_t, *extra_t, *in_t, *out_t;  /* dx = dy W */
} NAME(Layer);

typedef struct {
    Weights w;
    float *edge, *edge_t, *output, *output_t;
    float *first_terms; /* [kinds, 3 F] node parts in the first layer */
    NAME(Layer) *layers;
    float *memory;
} NAME(Model);

int64_t NAME(fused_panel)(void) { return PANEL; }

void *NAME(fused_model)(const Weights *weights) {
    const Weights w = *weights;
    const int64_t H = w.hidden, F = w.filters, E = w.edge, D = w.directional, W = w.feed_forward, O = w.output;
    const int64_t X = w.extra_layer ? H : 0, second = w.second_layer ? D : 0; /* width and depth of optional weights */
    const int64_t per_layer = F * E + 3 * F * H + H * F + X * H + 2 * W * H;
    NAME(Model) *model = calloc(1, sizeof *model);
    if (!model) return NULL;
    model->layers = calloc((size_t)w.layers, sizeof *model->layers);
    const size_t size = (size_t)(2 * (w.layers * per_layer + E * second + O * H) + w.kinds * 3 * F + F);
    if (!model->layers || posix_memalign((void **)&model->memory, 64, size * sizeof(float))) {
        free(model->layers), free(model);
        return NULL;
    }
    model->w = w;
    /* in the order of their use: a product fetches the panel that comes next in memory */
    float *memory = model->memory;
    model->edge = NAME(pack)(&memory, w.edge_weight, E, second, 0);
    for (int64_t l = 0; l < w.layers; l++) {
        NAME(Layer) *layer = model->layers + l;
        layer->node = NAME(pack)(&memory, w.node_weight + l * 3 * F * H, 3 * F, H, 0);
        layer->filter = NAME(pack)(&memory, w.filter_weight + l * F * E, F, E, 0);
        layer->up = NAME(pack)(&memory, w.up_weight + l * H * F, H, F, 0);
        layer->extra = NAME(pack)(&memory, w.extra_weight + l * X * H, X, H, 0);
        layer->in = NAME(pack)(&memory, w.in_weight + l * W * H, W, H, 0);
        layer->out = NAME(pack)(&memory, w.out_weight + l * H * W, H, W, 0);
    }
    model->output = NAME(pack)(&memory, w.output_weight, O, H, 0);
    model->output_t = NAME(pack)(&memory, w.output_weight, H, O, 1);
    for (int64_t l = w.layers - 1; l >= 0; l--) {
        NAME(Layer) *layer = model->layers + l;
        layer->out_t = NAME(pack)(&memory, w.out_weight + l * H * W, W, H, 1);
        layer->in_t = NAME(pack)(&memory, w.in_weight + l * W * H, H, W, 1);
        layer->extra_t = NAME(pack)(&memory, w.extra_weight + l * X * H, H, X, 1);
        layer->up_t = NAME(pack)(&memory, w.up_weight + l * H * F, F, H, 1);
        layer->filter_t = NAME(pack)(&memory, w.filter_weight + l * F * E, E, F, 1);
        layer->node_t = NAME(pack)(&memory, w.node_weight + l * 3 * F * H, H, 3 * F, 1);
    }
    model->edge_t = NAME(pack)(&memory, w.edge_weight, second, E, 1);
    model->first_terms = memory;
    float *slope = memory + w.kinds * 3 * F; /* not used */
    NAME(product)(w.kinds, 3 * F, H, w.atom_states, H, model->layers->node, w.node_bias, model->first_terms, 3 * F, 0);
    for (int64_t kind = 0; w.active_source && kind < w.kinds; kind++)
        NAME(activate)(model->first_terms + kind * 3 * F + 2 * F, slope, F);
    return model;
}

void NAME(fused_free)(void *handle) {
    NAME(Model) *model = handle;
    if (!model) return;
    free(model->layers), free(model->memory), free(model);
}

/* ---- a group of frames ---- */

typedef struct {
    int64_t graph, frame, inverse; /* inverse: the frame -U that shares the edges, or -1 */
    int64_t atom, edge;            /* first of its rows in the group */
} NAME(Unit);

typedef struct {
    const NAME(Model) *model;
    const Batch *batch;
    const NAME(Unit) *units;
    int64_t n_units, signs, atoms, edges, threads, backward;
    int64_t *split;                                             /* [threads + 1] first atom of each thread */
    int64_t *first_edge;                                        /* [atoms + 1] */
    int32_t *centre, *neighbor;                                 /* [edges] atoms of the group */
    float *vector, *distance;                                   /* [edges, 3], [edges] */
    float *weight, *weight_slope, *envelope;                    /* [edges] w, dw/dd, and w without the factor */
    float *edge_state, *edge_slope;                             /* [edges, E], [edges, E] */
    float *filter;                                              /* [layers][edges, F], or [threads][TILE, F] */
    float *grad_edge;                                           /* [edges, E] */
    float *grad_weight, *grad_vector, *grad_distance;           /* [edges], [edges, 3], [edges] */
    float *seed, *factor;                                       /* [nodes], [nodes] of the energy */
    float *state, *head;                                        /* [nodes, H], [layers + 1][nodes, H] */
    float *node, *source_slope;                                 /* [layers][nodes, 3 F], [layers][nodes, F] */
    float *up_slope, *wide_slope, *wide;                        /* [layers][nodes, H], [layers][nodes, W], [nodes, W] */
    float *extra, *extra_slope;                                 /* [nodes, H], [layers][nodes, H] */
    float *normed, *norm_slope;                                 /* [layers][nodes, F], [layers][nodes, F] */
    float *norm_scale, *norm_sums;                              /* [layers][copies, F], [threads][copies, 3 F] */
    float *message, *grad_node, *grad_state, *grad_update;      /* [nodes, F], [nodes, 3 F], [nodes, H], [nodes, H] */
    float *hidden_output, *features;                            /* [nodes, O], [nodes, states that are read, O] */
    float *private_sums;                                        /* [threads][nodes, 3 F] */
    double *energy;                                             /* [nodes] */
} NAME(Group);

/* Where the arrays of a layer are that only the derivatives need for all layers. */
static inline int64_t NAME(slot)(const NAME(Group) *g, int64_t layer) { return g->backward ? layer : 0; }

/* Weights of the values and slopes at both ends of the spline's interval around a distance. */
typedef struct {
    int64_t interval;
    float v0, s0, v1, s1;
} NAME(Knots);

static inline NAME(Knots) NAME(knots)(const Weights *w, float distance, int derivative) {
    const float per_length = (float)(w->intervals / w->cutoff), position = distance * per_length;
    int64_t interval = (int64_t)position;
    if (interval >= w->intervals) interval = w->intervals - 1;
    const float t = position - (float)interval, u = 1 - t;
    if (!derivative) return (NAME(Knots)){interval, (1 + 2 * t) * u * u, t * u * u, t * t * (3 - 2 * t), -t * t * u};
    const float slope = 6 * t * u * per_length;
    return (NAME(Knots)){interval, -slope, u * (1 - 3 * t) * per_length, slope, t * (3 * t - 2) * per_length};
}

static inline V NAME(spline)(const float *table, const NAME(Knots) *at, int64_t width, int64_t k) {
    const float *knot = table + at->interval * 2 * width + k;
    return at->v0 * LOAD(knot) + at->s0 * LOAD(knot + width) + at->v1 * LOAD(knot + 2 * width) +
           at->s1 * LOAD(knot + 3 * width);
}

static void NAME(embed_edges)(NAME(Group) *g, int64_t from, int64_t to) {
    const Weights *w = &g->model->w;
    const int64_t E = w->edge, D = w->directional;
    float tile[TILE * D] __attribute__((aligned(64)));
    for (int64_t start = from; start < to; start += TILE) {
        const int64_t rows = to - start < TILE ? to - start : TILE;
        float *direction = w->second_layer ? tile : g->edge_state + start * E;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t edge = start + r;
            const float x = g->vector[3 * edge], y = g->vector[3 * edge + 1], z = g->vector[3 * edge + 2];
            EACH(k, D) {
                const V value = LOAD(w->direction_bias + k) + x * LOAD(w->direction_weight + k) +
                                y * LOAD(w->direction_weight + D + k) + z * LOAD(w->direction_weight + 2 * D + k);
                STORE(direction + r * D + k, value * NAME(sigmoid)(value));
            }
            if (!w->second_layer) continue;
            const NAME(Knots) at = NAME(knots)(w, g->distance[edge], 0);
            EACH(k, E) STORE(g->edge_state + edge * E + k, NAME(spline)(w->radial, &at, E, k));
        }
        if (!w->second_layer) continue;
        float *state = g->edge_state + start * E;
        NAME(product)(rows, E, D, direction, D, g->model->edge, NULL, state, E, 1);
        NAME(activate)(state, g->edge_slope + start * E, rows * E);
    }
}

#define EACH_CHUNK(k, width) for (int64_t k = 0; k < (width); k += CHUNK * LANES)
#define EACH_OF_CHUNK(c) EACH_OF(c, CHUNK)

/* The neighbor of an edge that is soon worked on. */
static inline int64_t NAME(neighbor_ahead)(const NAME(Group) *g, int64_t edge) {
    return g->neighbor[edge + AHEAD < g->edges ? edge + AHEAD : edge];
}
/* Messages along an edge. */
static inline __attribute__((always_inline)) void NAME(send_along)(const NAME(Group) *g, const float *nodes, int64_t edge,
                                                                   const float *y, float *sums, int64_t signs) {
    const int64_t F = g->model->w.filters, i = g->centre[edge] * signs, j = g->neighbor[edge] * signs;
    const float weight = g->weight[edge], *a = nodes + i * 3 * F, *b = nodes + j * 3 * F + F;
    const float *a2 = b + 2 * F, *b2 = a + 4 * F;
    float *message = g->message + i * F, *message2 = sums + (j + 1) * F;
    const int64_t soon = NAME(neighbor_ahead)(g, edge) * signs;
    NAME(prefetch)(nodes + soon * 3 * F + F, signs == 2 ? 3 * F : 2 * F);
    if (signs == 2) NAME(prefetch)(sums + (soon + 1) * F, F);
    EACH_CHUNK(k, F) {
        V z[2 * CHUNK], sigmoid[2 * CHUNK];
        EACH_OF_CHUNK(c) {
            const int64_t at = k + c * LANES;
            const V shared = LOAD(y + at);
            z[c] = shared + LOAD(a + at) + LOAD(b + at);
            if (signs == 2) z[CHUNK + c] = shared + LOAD(a2 + at) + LOAD(b2 + at);
        }
        NAME(sigmoids)(z, sigmoid, (int)signs * CHUNK);
        EACH_OF_CHUNK(c) {
            const int64_t at = k + c * LANES;
            STORE(message + at, LOAD(message + at) + weight * LOAD(b + F + at) * (z[c] * sigmoid[c]));
            if (signs == 1) continue;
            const V value = z[CHUNK + c] * sigmoid[CHUNK + c];
            STORE(message2 + at, LOAD(message2 + at) + weight * LOAD(b2 + F + at) * value);
        }
    }
}

/* Messages of a layer from the edges around the atoms of a thread. */
static void NAME(send)(NAME(Group) *g, int64_t layer, int64_t thread, float *sums) {
    const Weights *w = &g->model->w;
    const int64_t F = w->filters, E = w->edge, S = g->signs;
    const int64_t from = g->first_edge[g->split[thread]], to = g->first_edge[g->split[thread + 1]];
    const float *nodes = g->node + NAME(slot)(g, layer) * g->atoms * S * 3 * F;
    const float *radial = w->second_layer ? NULL : w->radial + layer * (w->intervals + 1) * 2 * F;
    for (int64_t start = from; start < to; start += TILE) {
        const int64_t rows = to - start < TILE ? to - start : TILE;
        float *filters = g->filter + (g->backward ? layer * g->edges + start : thread * TILE) * F;
        for (int64_t r = 0; radial && r < rows; r++) {
            const NAME(Knots) at = NAME(knots)(w, g->distance[start + r], 0);
            EACH(k, F) STORE(filters + r * F + k, NAME(spline)(radial, &at, F, k));
        }
        NAME(product)(rows, F, E, g->edge_state + start * E, E, g->model->layers[layer].filter, NULL, filters, F,
                      radial != NULL);
        for (int64_t edge = start; edge < start + rows; edge++) {
            const float *y = filters + (edge - start) * F;
            NAME(prefetch)(g->edge_state + (edge + TILE) * E, E);
            if (S == 1) NAME(send_along)(g, nodes, edge, y, sums, 1);
            else NAME(send_along)(g, nodes, edge, y, sums, 2);
        }
    }
}

/* Derivatives of the messages along an edge: dE/dz; adds to the sums for the nodes and returns dE/dw. */
static inline __attribute__((always_inline)) float NAME(send_along_backward)(
    const NAME(Group) *g, const float *nodes, int64_t edge, const float *y, float *grads, float *sums, int64_t signs,
    int needs_nodes) {
    const int64_t F = g->model->w.filters, i = g->centre[edge] * signs, j = g->neighbor[edge] * signs;
    const float weight = g->weight[edge], *a = nodes + i * 3 * F, *b = nodes + j * 3 * F + F, *up = g->message + i * F;
    const float *a2 = b + 2 * F, *b2 = a + 4 * F, *up2 = g->message + (j + 1) * F;
    float *grad_a = sums + i * 3 * F, *grad_b = sums + j * 3 * F + F, *grad_a2 = grad_b + 2 * F, *grad_b2 = grad_a + 4 * F;
    const int64_t soon = NAME(neighbor_ahead)(g, edge) * signs;
    NAME(prefetch)(nodes + soon * 3 * F + F, signs == 2 ? 3 * F : 2 * F);
    if (signs == 2) NAME(prefetch)(g->message + (soon + 1) * F, F);
    if (needs_nodes) NAME(prefetch)(sums + soon * 3 * F + F, signs == 2 ? 3 * F : 2 * F);
    V along = {0};
    EACH_CHUNK(k, F) {
        V z[2 * CHUNK], s[2 * CHUNK];
        EACH_OF_CHUNK(c) {
            const int64_t at = k + c * LANES;
            const V shared = LOAD(y + at);
            z[c] = shared + LOAD(a + at) + LOAD(b + at);
            if (signs == 2) z[CHUNK + c] = shared + LOAD(a2 + at) + LOAD(b2 + at);
        }
        NAME(sigmoids)(z, s, (int)signs * CHUNK);
        EACH_OF_CHUNK(c) {
            const int64_t at = k + c * LANES;
            V sum = {0};
            for (int sign = 0; sign < signs; sign++) {
                const V sigmoid = s[sign * CHUNK + c], value = z[sign * CHUNK + c] * sigmoid;
                const V upstream = LOAD((sign ? up2 : up) + at), both = LOAD((sign ? b2 : b) + F + at) * upstream;
                const V grad = weight * both * (sigmoid + value * (1.0f - sigmoid));
                along += both * value;
                sum += grad;
                if (!needs_nodes) continue;
                float *to_a = (sign ? grad_a2 : grad_a) + at, *to_b = (sign ? grad_b2 : grad_b) + at;
                STORE(to_a, LOAD(to_a) + grad);
                STORE(to_b, LOAD(to_b) + grad);
                STORE(to_b + F, LOAD(to_b + F) + weight * upstream * value);
            }
            STORE(grads + at, sum);
        }
    }
    return NAME(total)(along);
}

/* Derivatives of a layer's messages with respect to edge states, weights and distances; sums for the nodes
 * [dE/da, dE/db, dE/dx]. */
static void NAME(send_backward)(NAME(Group) *g, int64_t layer, int64_t first, int64_t last, float *sums) {
    const Weights *w = &g->model->w;
    const int64_t F = w->filters, E = w->edge, S = g->signs, to = g->first_edge[last];
    const int needs_nodes = layer > 0; /* the first states do not depend on positions */
    const float *nodes = g->node + layer * g->atoms * S * 3 * F;
    const float *radial = w->second_layer ? NULL : w->radial + layer * (w->intervals + 1) * 2 * F;
    float grads[TILE * F] __attribute__((aligned(64)));
    for (int64_t start = g->first_edge[first]; start < to; start += TILE) {
        const int64_t rows = to - start < TILE ? to - start : TILE;
        const float *filters = g->filter + (layer * g->edges + start) * F;
        for (int64_t edge = start; edge < start + rows; edge++) {
#define ALONG(signs, needs)                                                                                            \
    NAME(send_along_backward)(g, nodes, edge, filters + (edge - start) * F, grads + (edge - start) * F, sums, signs, needs)
            NAME(prefetch)(g->grad_edge + (edge + TILE) * E, E);
            g->grad_weight[edge] += S == 1 ? (needs_nodes ? ALONG(1, 1) : ALONG(1, 0))
                                           : (needs_nodes ? ALONG(2, 1) : ALONG(2, 0));
#undef ALONG
        }
        NAME(product)(rows, E, F, grads, F, g->model->layers[layer].filter_t, NULL, g->grad_edge + start * E, E,
                      layer < w->layers - 1);
        for (int64_t r = 0; radial && r < rows; r++) {
            const NAME(Knots) at = NAME(knots)(w, g->distance[start + r], 1);
            V slope = {0};
            EACH(k, F) slope += LOAD(grads + r * F + k) * NAME(spline)(radial, &at, F, k);
            g->grad_distance[start + r] += NAME(total)(slope);
        }
    }
}

static void NAME(embed_edges_backward)(NAME(Group) *g, int64_t from, int64_t to) {
    const Weights *w = &g->model->w;
    const int64_t E = w->edge, D = w->directional;
    float tile[TILE * D] __attribute__((aligned(64)));
    for (int64_t start = from; start < to; start += TILE) {
        const int64_t rows = to - start < TILE ? to - start : TILE;
        float *grad = g->grad_edge + start * E;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t edge = start + r;
            g->grad_distance[edge] += g->grad_weight[edge] * g->weight_slope[edge];
            if (!w->second_layer) continue;
            const NAME(Knots) at = NAME(knots)(w, g->distance[edge], 1);
            V along = {0};
            EACH(k, E) {
                const V value = LOAD(grad + r * E + k) * LOAD(g->edge_slope + edge * E + k);
                STORE(grad + r * E + k, value);
                along += value * NAME(spline)(w->radial, &at, E, k);
            }
            g->grad_distance[edge] += NAME(total)(along);
        }
        const float *grad_direction = w->second_layer ? tile : grad;
        if (w->second_layer) NAME(product)(rows, D, E, grad, E, g->model->edge_t, NULL, tile, D, 0);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t edge = start + r;
            const float x = g->vector[3 * edge], y = g->vector[3 * edge + 1], z = g->vector[3 * edge + 2];
            V gx = {0}, gy = {0}, gz = {0};
            EACH(k, D) {
                const V wx = LOAD(w->direction_weight + k), wy = LOAD(w->direction_weight + D + k);
                const V wz = LOAD(w->direction_weight + 2 * D + k);
                const V value = LOAD(w->direction_bias + k) + x * wx + y * wy + z * wz, s = NAME(sigmoid)(value);
                const V grad_value = LOAD(grad_direction + r * D + k) * (s + value * s * (1.0f - s));
                gx += grad_value * wx, gy += grad_value * wy, gz += grad_value * wz;
            }
            g->grad_vector[3 * edge] = NAME(total)(gx);
            g->grad_vector[3 * edge + 1] = NAME(total)(gy);
            g->grad_vector[3 * edge + 2] = NAME(total)(gz);
        }
    }
}

/* Energy of the states of nodes [from, to) after a layer, and its derivative with respect to them. */
static void NAME(read_out)(NAME(Group) *g, int64_t layer, int64_t from, int64_t to) {
    const Weights *w = &g->model->w;
    const int64_t H = w->hidden, O = w->output, number = layer - w->first_read;
    if (number < 0) return;
    const float mix = w->mixing[layer];
    float *hidden = g->hidden_output + from * O, *head = g->head + layer * g->atoms * g->signs * H;
    const int slopes = g->backward && layer > 0; /* the first states do not depend on positions */
    NAME(product)(to - from, O, H, g->state + from * H, H, g->model->output, w->output_hidden_bias, hidden, O, 0);
    for (int64_t node = from; node < to; node++) {
        float *z = g->hidden_output + node * O, *state = g->state + node * H;
        float *features = g->features + (node * (w->layers + 1 - w->first_read) + number) * O;
        float factor = g->factor[node];
        const float fixed = factor;
        if (w->weighted) {
            V sum = {0};
            EACH(k, H) sum += LOAD(state + k) * LOAD(w->head_weight + k);
            factor *= NAME(total)(sum) + (float)w->head_bias;
        }
        V energy = {0};
        EACH(k, O) {
            const V value = LOAD(z + k), s = NAME(sigmoid)(value), y = value * s, weight = LOAD(w->energy_weight + k);
            energy += weight * y;
            STORE(features + k, factor * y);
            STORE(z + k, g->seed[node] * mix * factor * weight * (s + y * (1.0f - s)));
        }
        const double total = (double)NAME(total)(energy) + w->output_bias;
        g->energy[node] += (double)mix * factor * total;
        if (slopes && w->weighted) {
            const float slope = g->seed[node] * mix * fixed * (float)total;
            EACH(k, H) STORE(head + node * H + k, slope * LOAD(w->head_weight + k));
        }
    }
    if (slopes) NAME(product)(to - from, H, O, hidden, O, g->model->output_t, NULL, head + from * H, H, (int)w->weighted);
}

/* Waits for the other threads of a group. */
static inline void NAME(meet)(const NAME(Group) *g) {
#ifdef _OPENMP
    if (g->threads > 1) {
#pragma omp barrier
    }
#else
    (void)g;
#endif
}

/* The nodes from, from + signs, … < to of a copy (structure in a frame) that belong to a thread. */
typedef struct {
    int64_t from, to;
    float count; /* nodes of the copy in all threads */
} NAME(Span);

static inline NAME(Span) NAME(span)(const NAME(Group) *g, int64_t copy, int64_t thread) {
    const int64_t S = g->signs, unit = copy / S, first = g->split[thread], last = g->split[thread + 1];
    const int64_t begin = g->units[unit].atom, end = unit + 1 < g->n_units ? g->units[unit + 1].atom : g->atoms;
    const int64_t low = begin > first ? begin : first, high = end < last ? end : last;
    return (NAME(Span)){low * S + copy % S, high * S, (float)(end - begin)};
}

#define EACH_NODE(node, span) for (int64_t node = (span).from; node < (span).to; node += g->signs)

/* Sum of column k over the nodes of a copy from the sums of all threads. */
static inline V NAME(of_threads)(const NAME(Group) *g, int64_t copy, int64_t k) {
    const int64_t width = 3 * g->model->w.filters;
    V sum = {0};
    for (int64_t thread = 0; thread < g->threads; thread++)
        sum += LOAD(g->norm_sums + (thread * g->n_units * g->signs + copy) * width + k);
    return sum;
}

/* m = σ(GraphNorm(m)) of a layer, over the atoms of each copy. */
static void NAME(normalize)(NAME(Group) *g, int64_t layer, int64_t thread) {
    const Weights *w = &g->model->w;
    const int64_t F = w->filters, S = g->signs, nodes = g->atoms * S, copies = g->n_units * S;
    const float *weight = w->norm_weight + layer * F, *bias = w->norm_bias + layer * F;
    const float *mean_scale = w->norm_mean_scale + layer * F;
    float *sums = g->norm_sums + thread * copies * 3 * F, *normed = g->normed + NAME(slot)(g, layer) * nodes * F;
    float *slope = g->norm_slope + NAME(slot)(g, layer) * nodes * F;
    float *scale = g->norm_scale + NAME(slot)(g, layer) * copies * F;
    memset(sums, 0, (size_t)(copies * 3 * F) * sizeof(float));
    for (int64_t copy = 0; copy < copies; copy++) {
        const NAME(Span) span = NAME(span)(g, copy, thread);
        EACH_NODE(node, span) EACH(k, F) {
            float *sum = sums + copy * 3 * F + k;
            STORE(sum, LOAD(sum) + LOAD(g->message + node * F + k));
        }
    }
    NAME(meet)(g);
    for (int64_t copy = 0; copy < copies; copy++) {
        const NAME(Span) span = NAME(span)(g, copy, thread);
        EACH(k, F) {
            const V mean = LOAD(mean_scale + k) * NAME(of_threads)(g, copy, k) / span.count;
            V squares = {0};
            EACH_NODE(node, span) {
                const V difference = LOAD(g->message + node * F + k) - mean;
                STORE(normed + node * F + k, difference);
                squares += difference * difference;
            }
            STORE(sums + copy * 3 * F + F + k, squares);
        }
    }
    NAME(meet)(g);
    for (int64_t copy = 0; copy < copies; copy++) {
        const NAME(Span) span = NAME(span)(g, copy, thread);
        EACH(k, F) {
            const V variance = NAME(of_threads)(g, copy, F + k) / span.count + (float)w->norm_epsilon;
            V inverse = variance;
            for (int lane = 0; lane < LANES; lane++) inverse[lane] = 1.0f / sqrtf(variance[lane]);
            if (!thread) STORE(scale + copy * F + k, inverse);
            EACH_NODE(node, span) {
                const V value = LOAD(normed + node * F + k) * inverse, z = LOAD(weight + k) * value + LOAD(bias + k);
                const V s = NAME(sigmoid)(z), y = z * s;
                STORE(normed + node * F + k, value);
                STORE(slope + node * F + k, LOAD(weight + k) * (s + y * (1.0f - s)));
                STORE(g->message + node * F + k, y);
            }
        }
    }
}

/* dE/dm before the norm of a layer, in place of dE/dm after it. */
static void NAME(normalize_backward)(NAME(Group) *g, int64_t layer, int64_t thread) {
    const Weights *w = &g->model->w;
    const int64_t F = w->filters, S = g->signs, nodes = g->atoms * S, copies = g->n_units * S;
    const float *mean_scale = w->norm_mean_scale + layer * F, message_scale = (float)w->message_scale;
    const float *normed = g->normed + layer * nodes * F, *slope = g->norm_slope + layer * nodes * F;
    const float *scale = g->norm_scale + layer * copies * F;
    float *sums = g->norm_sums + thread * copies * 3 * F;
    memset(sums, 0, (size_t)(copies * 3 * F) * sizeof(float));
    for (int64_t copy = 0; copy < copies; copy++) {
        const NAME(Span) span = NAME(span)(g, copy, thread);
        EACH_NODE(node, span) EACH(k, F) {
            float *sum = sums + copy * 3 * F + k;
            const V grad = LOAD(g->message + node * F + k) * LOAD(slope + node * F + k), value = LOAD(normed + node * F + k);
            STORE(g->message + node * F + k, grad);
            STORE(sum, LOAD(sum) + grad);
            STORE(sum + F, LOAD(sum + F) + grad * value);
            STORE(sum + 2 * F, LOAD(sum + 2 * F) + value);
        }
    }
    NAME(meet)(g);
    for (int64_t copy = 0; copy < copies; copy++) {
        const NAME(Span) span = NAME(span)(g, copy, thread);
        EACH(k, F) {
            const V grads = NAME(of_threads)(g, copy, k), products = NAME(of_threads)(g, copy, F + k) / span.count;
            const V of_mean = LOAD(mean_scale + k) * (grads - products * NAME(of_threads)(g, copy, 2 * F + k)) / span.count;
            const V factor = message_scale * LOAD(scale + copy * F + k);
            EACH_NODE(node, span) {
                float *grad = g->message + node * F + k;
                STORE(grad, factor * (LOAD(grad) - products * LOAD(normed + node * F + k) - of_mean));
            }
        }
    }
}

static void NAME(update)(NAME(Group) *g, int64_t layer, int64_t thread) {
    const Weights *w = &g->model->w;
    const NAME(Layer) *packed = g->model->layers + layer;
    const int64_t H = w->hidden, F = w->filters, W = w->feed_forward, nodes = g->atoms * g->signs;
    const int64_t from = g->split[thread] * g->signs, to = g->split[thread + 1] * g->signs, rows = to - from;
    const int64_t slot = NAME(slot)(g, layer) * nodes + from;
    const float scale = (float)w->message_scale;
    float *message = g->message + from * F, *state = g->state + from * H, *update = g->grad_update + from * H;
    EACH(k, rows * F) STORE(message + k, scale * LOAD(message + k));
    if (w->graph_norm) NAME(normalize)(g, layer, thread);
    NAME(product)(rows, H, F, message, F, packed->up, w->up_bias + layer * H, update, H, 0);
    NAME(activate)(update, g->up_slope + slot * H, rows * H);
    if (w->extra_layer) {
        float *extra = g->extra + from * H;
        NAME(product)(rows, H, H, update, H, packed->extra, w->extra_bias + layer * H, extra, H, 0);
        NAME(activate)(extra, g->extra_slope + slot * H, rows * H);
        update = extra;
    }
    EACH(k, rows * H) STORE(state + k, LOAD(state + k) + LOAD(update + k));
    if (!W) return;
    float *wide = g->wide + from * W;
    NAME(product)(rows, W, H, state, H, packed->in, w->in_bias + layer * W, wide, W, 0);
    NAME(activate)(wide, g->wide_slope + slot * W, rows * W);
    NAME(product)(rows, H, W, wide, W, packed->out, w->out_bias + layer * H, update, H, 0);
    EACH(k, rows * H) STORE(state + k, LOAD(state + k) + LOAD(update + k));
}

/* dE/dm of a layer, in place of the messages, from dE/dh after it. */
static void NAME(update_backward)(NAME(Group) *g, int64_t layer, int64_t thread) {
    const Weights *w = &g->model->w;
    const NAME(Layer) *packed = g->model->layers + layer;
    const int64_t H = w->hidden, F = w->filters, W = w->feed_forward, nodes = g->atoms * g->signs;
    const int64_t from = g->split[thread] * g->signs, to = g->split[thread + 1] * g->signs, rows = to - from;
    const float scale = w->graph_norm ? 1.0f : (float)w->message_scale;
    float *grad = g->grad_state + from * H, *update = g->grad_update + from * H, *message = g->message + from * F;
    if (W) {
        float *wide = g->wide + from * W, *slope = g->wide_slope + (layer * nodes + from) * W;
        NAME(product)(rows, W, H, grad, H, packed->out_t, NULL, wide, W, 0);
        EACH(k, rows * W) STORE(wide + k, LOAD(wide + k) * LOAD(slope + k));
        NAME(product)(rows, H, W, wide, W, packed->in_t, NULL, grad, H, 1);
    }
    const float *slope = g->up_slope + (layer * nodes + from) * H, *grad_up = grad;
    if (w->extra_layer) {
        float *extra = g->extra + from * H, *extra_slope = g->extra_slope + (layer * nodes + from) * H;
        EACH(k, rows * H) STORE(extra + k, LOAD(grad + k) * LOAD(extra_slope + k));
        NAME(product)(rows, H, H, extra, H, packed->extra_t, NULL, update, H, 0);
        grad_up = update;
    }
    EACH(k, rows * H) STORE(update + k, scale * LOAD(grad_up + k) * LOAD(slope + k));
    NAME(product)(rows, F, H, update, H, packed->up_t, NULL, message, F, 0);
    if (w->graph_norm) NAME(normalize_backward)(g, layer, thread);
}

static void NAME(node_terms)(NAME(Group) *g, int64_t layer, int64_t from, int64_t to) {
    const Weights *w = &g->model->w;
    const int64_t H = w->hidden, F = w->filters, slot = NAME(slot)(g, layer) * g->atoms * g->signs + from;
    float *terms = g->node + slot * 3 * F;
    NAME(product)(to - from, 3 * F, H, g->state + from * H, H, g->model->layers[layer].node, w->node_bias + layer * 3 * F,
                  terms, 3 * F, 0);
    for (int64_t row = 0; w->active_source && row < to - from; row++)
        NAME(activate)(terms + row * 3 * F + 2 * F, g->source_slope + (slot + row) * F, F);
}

static void NAME(forward)(NAME(Group) *g, int64_t thread) {
    const Weights *w = &g->model->w;
    const int64_t F = w->filters, S = g->signs, nodes = g->atoms * S;
    const int64_t first = g->split[thread], last = g->split[thread + 1], from = first * S, to = last * S;
    const int alone = g->threads == 1;
    float *own_sums = alone ? g->message : g->private_sums + thread * nodes * 3 * F;

    NAME(embed_edges)(g, g->first_edge[first], g->first_edge[last]);
    for (int64_t layer = 0; layer < w->layers; layer++) {
        NAME(read_out)(g, layer, from, to);
        if (layer > 0) NAME(node_terms)(g, layer, from, to); /* those of the first layer belong to the model */
        memset(g->message + from * F, 0, (size_t)((to - from) * F) * sizeof(float));
        NAME(meet)(g);
        if (!alone && S == 2) memset(own_sums, 0, (size_t)(nodes * F) * sizeof(float));
        NAME(send)(g, layer, thread, own_sums);
        NAME(meet)(g);
        for (int64_t other = 0; !alone && S == 2 && other < g->threads; other++) {
            const float *sums = g->private_sums + other * nodes * 3 * F;
            for (int64_t node = from + 1; node < to; node += 2) {
                float *message = g->message + node * F;
                EACH(k, F) STORE(message + k, LOAD(message + k) + LOAD(sums + node * F + k));
            }
        }
        NAME(update)(g, layer, thread);
    }
    NAME(read_out)(g, w->layers, from, to);
}

static void NAME(backward)(NAME(Group) *g, int64_t thread) {
    const Weights *w = &g->model->w;
    const int64_t H = w->hidden, F = w->filters, S = g->signs, nodes = g->atoms * S, L = w->layers;
    const int64_t first = g->split[thread], last = g->split[thread + 1], from = first * S, to = last * S;
    const int64_t from_edge = g->first_edge[first], to_edge = g->first_edge[last];
    const int alone = g->threads == 1;
    float *grad_state = g->grad_state + from * H, *grad_node = g->grad_node + from * 3 * F;
    float *own_sums = alone ? g->grad_node : g->private_sums + thread * nodes * 3 * F;

    NAME(meet)(g); /* the sums of the last norm have been read */
    memcpy(grad_state, g->head + (L * nodes + from) * H, (size_t)((to - from) * H) * sizeof(float));
    memset(g->grad_weight + from_edge, 0, (size_t)(to_edge - from_edge) * sizeof(float));
    memset(g->grad_distance + from_edge, 0, (size_t)(to_edge - from_edge) * sizeof(float));
    for (int64_t layer = L - 1; layer >= 0; layer--) {
        NAME(update_backward)(g, layer, thread);
        NAME(meet)(g);
        memset(own_sums, 0, (size_t)(nodes * 3 * F) * sizeof(float));
        NAME(send_backward)(g, layer, first, last, own_sums);
        NAME(meet)(g);
        if (layer == 0) break;
        for (int64_t other = 0; !alone && other < g->threads; other++) {
            const float *sums = g->private_sums + (other * nodes + from) * 3 * F;
            EACH(k, (to - from) * 3 * F) STORE(grad_node + k, (other ? LOAD(grad_node + k) : (V){0}) + LOAD(sums + k));
        }
        for (int64_t node = from; w->active_source && node < to; node++) {
            float *grad_source = g->grad_node + node * 3 * F + 2 * F;
            const float *slope = g->source_slope + (layer * nodes + node) * F;
            EACH(k, F) STORE(grad_source + k, LOAD(grad_source + k) * LOAD(slope + k));
        }
        NAME(product)(to - from, H, 3 * F, grad_node, 3 * F, g->model->layers[layer].node_t, NULL, grad_state, H, 1);
        if (layer < w->first_read) continue;
        const float *head = g->head + (layer * nodes + from) * H;
        EACH(k, (to - from) * H) STORE(grad_state + k, LOAD(grad_state + k) + LOAD(head + k));
    }
    NAME(embed_edges_backward)(g, from_edge, to_edge);
}

/* ---- from a batch to groups and back ---- */

/* Places the arrays of a group in memory and returns their size; with memory NULL it only counts. */
static int64_t NAME(place)(NAME(Group) *g, char *memory) {
    const Weights *w = &g->model->w;
    const int64_t H = w->hidden, F = w->filters, E = w->edge, W = w->feed_forward, O = w->output;
    const int64_t nodes = g->atoms * g->signs, edges = g->edges, copies = g->n_units * g->signs;
    const int64_t L = g->backward ? w->layers : 1, kept_edges = g->backward ? edges : 0;
    int64_t used = 0;
#define TAKE(field, count)                                                                                             \
    do {                                                                                                               \
        if (memory) g->field = (void *)(memory + used);                                                                \
        used += ((int64_t)sizeof(*g->field) * (count) + 63) / 64 * 64;                                                 \
    } while (0)
    TAKE(split, g->threads + 1);
    TAKE(first_edge, g->atoms + 1);
    TAKE(centre, edges);
    TAKE(neighbor, edges);
    TAKE(vector, 3 * edges);
    TAKE(distance, edges);
    TAKE(weight, edges);
    TAKE(weight_slope, edges);
    TAKE(envelope, edges);
    TAKE(edge_state, edges * E);
    TAKE(edge_slope, w->second_layer ? edges * E : 0);
    TAKE(filter, (g->backward ? L * edges : g->threads * TILE) * F);
    TAKE(grad_edge, kept_edges * E);
    TAKE(grad_weight, kept_edges);
    TAKE(grad_vector, 3 * kept_edges);
    TAKE(grad_distance, kept_edges);
    TAKE(seed, nodes);
    TAKE(factor, nodes);
    TAKE(state, nodes * H);
    TAKE(head, g->backward ? (L + 1) * nodes * H : 0);
    TAKE(node, L * nodes * 3 * F);
    TAKE(source_slope, L * nodes * F);
    TAKE(up_slope, L * nodes * H);
    TAKE(wide_slope, L * nodes * W);
    TAKE(wide, nodes * W);
    TAKE(extra, w->extra_layer ? nodes * H : 0);
    TAKE(extra_slope, w->extra_layer ? L * nodes * H : 0);
    TAKE(normed, w->graph_norm ? L * nodes * F : 0);
    TAKE(norm_slope, w->graph_norm ? L * nodes * F : 0);
    TAKE(norm_scale, w->graph_norm ? L * copies * F : 0);
    TAKE(norm_sums, w->graph_norm ? g->threads * copies * 3 * F : 0);
    TAKE(message, nodes * F);
    TAKE(grad_node, nodes * 3 * F);
    TAKE(grad_state, nodes * H);
    TAKE(grad_update, nodes * H);
    TAKE(hidden_output, nodes * O);
    TAKE(features, nodes * (w->layers + 1 - w->first_read) * O);
    TAKE(energy, nodes);
    TAKE(private_sums, g->threads > 1 ? g->threads * nodes * 3 * F : 0);
#undef TAKE
    return used;
}

static inline uint64_t NAME(hash)(int64_t i, int64_t j, int64_t a, int64_t b, int64_t c) {
    const int64_t values[5] = {i, j, a, b, c};
    uint64_t hash = 0;
    for (int k = 0; k < 5; k++) {
        hash = (hash ^ (uint64_t)values[k]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* Whether every edge (i, j, shift) has its reverse (j, i, -shift): sums of hashes are equal if and, in practice, only if. */
static int NAME(symmetric)(const Batch *b) {
    uint64_t difference = 0;
    for (int64_t edge = 0; edge < b->n_edges; edge++) {
        const int64_t i = b->centre[edge], j = b->neighbor[edge], *s = b->shift + 3 * edge;
        difference += NAME(hash)(i, j, s[0], s[1], s[2]) - NAME(hash)(j, i, -s[0], -s[1], -s[2]);
    }
    return difference == 0;
}

/* Frames of a batch, inverse ones together if they can share their edges; returns their number. */
static int64_t NAME(units)(const Batch *b, NAME(Unit) *units) {
    const int share = b->share_inverse && NAME(symmetric)(b);
    int64_t n_units = 0;
    for (int64_t graph = 0; graph < b->n_graphs; graph++) {
        const int64_t first = n_units;
        for (int64_t frame = b->frame_start[graph]; frame < b->frame_start[graph + 1]; frame++) {
            int64_t found = -1;
            for (int64_t unit = first; share && unit < n_units && found < 0; unit++) {
                if (units[unit].inverse >= 0) continue;
                const double *one = b->rotation + 9 * units[unit].frame, *other = b->rotation + 9 * frame;
                int inverse = 1;
                for (int k = 0; k < 9 && inverse; k++) inverse = one[k] == -other[k];
                if (inverse) found = unit;
            }
            if (found >= 0) units[found].inverse = frame;
            else units[n_units++] = (NAME(Unit)){.graph = graph, .frame = frame, .inverse = -1};
        }
    }
    return n_units;
}

/* The next group of frames, from the unit `start` on; returns the unit after it. */
static int64_t NAME(gather)(NAME(Group) *g, NAME(Unit) *units, int64_t n_units, int64_t start) {
    const Batch *b = g->batch;
    g->units = units + start, g->n_units = g->atoms = g->edges = 0;
    g->signs = units[start].inverse >= 0 ? 2 : 1;
    for (int64_t unit = start; unit < n_units; unit++) {
        const int64_t graph = units[unit].graph, edges = b->edge_start[graph + 1] - b->edge_start[graph];
        if (g->n_units && (g->edges + edges > b->edges_per_group || (units[unit].inverse >= 0) != (g->signs == 2))) break;
        units[unit].atom = g->atoms, units[unit].edge = g->edges;
        g->atoms += b->atom_start[graph + 1] - b->atom_start[graph], g->edges += edges, g->n_units++;
    }
    return start + g->n_units;
}

/* First atoms of the threads, with equal numbers of edges. */
static void NAME(divide)(NAME(Group) *g) {
    int64_t atom = 0;
    g->split[0] = 0;
    for (int64_t thread = 1; thread < g->threads; thread++) {
        while (atom < g->atoms && (g->first_edge[atom] + atom) * g->threads < (g->edges + g->atoms) * thread) atom++;
        g->split[thread] = atom;
    }
    g->split[g->threads] = g->atoms;
}

/* Copies a group's part of the batch into its arrays: edges in their frames, envelope, first states. */
static void NAME(fill)(NAME(Group) *g) {
    const Batch *b = g->batch;
    const Weights *w = &g->model->w;
    const int64_t S = g->signs, H = w->hidden, F = w->filters;
    const double p = (double)w->power;
    for (int64_t number = 0; number < g->n_units; number++) {
        const NAME(Unit) *unit = g->units + number;
        const int64_t atom = b->atom_start[unit->graph], edge = b->edge_start[unit->graph];
        const int64_t atoms = b->atom_start[unit->graph + 1] - atom, edges = b->edge_start[unit->graph + 1] - edge;
        const double *u = b->rotation + 9 * unit->frame;
        int64_t next = unit->atom;
        for (int64_t k = 0; k < edges; k++) {
            const int64_t row = unit->edge + k, centre = b->centre[edge + k] - atom + unit->atom;
            const double *v = b->vectors + 3 * (edge + k);
            while (next <= centre) g->first_edge[next++] = row;
            g->centre[row] = (int32_t)centre;
            g->neighbor[row] = (int32_t)(b->neighbor[edge + k] - atom + unit->atom);
            for (int x = 0; x < 3; x++) g->vector[3 * row + x] = (float)(v[0] * u[x] + v[1] * u[3 + x] + v[2] * u[6 + x]);
            const double distance = sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]), x = distance / w->cutoff;
            double weight = 1, slope = 0;
            if (w->power && x < 1) {
                double power = 1;
                for (int64_t n = 1; n < w->power; n++) power *= x;
                weight = 1 - power * x * ((p + 1) * (p + 2) / 2 - p * (p + 2) * x + p * (p + 1) / 2 * x * x);
                slope = -p * (p + 1) * (p + 2) / 2 * power * (1 - x) * (1 - x) / w->cutoff;
            } else if (w->power) {
                weight = 0;
            }
            const double factor = b->factor ? b->factor[edge + k] : 1;
            g->distance[row] = (float)distance, g->envelope[row] = (float)weight;
            g->weight[row] = (float)(weight * factor), g->weight_slope[row] = (float)(slope * factor);
        }
        while (next < unit->atom + atoms) g->first_edge[next++] = unit->edge + edges;
        for (int64_t k = 0; k < atoms; k++) {
            for (int64_t sign = 0; sign < S; sign++) {
                const int64_t node = (unit->atom + k) * S + sign;
                g->seed[node] = (float)b->seed[sign ? unit->inverse : unit->frame];
                g->factor[node] = w->kind_factor[b->kind[atom + k]];
                const int64_t kind = b->kind[atom + k];
                memcpy(g->state + node * H, w->atom_states + kind * H, (size_t)H * sizeof(float));
                memcpy(g->node + node * 3 * F, g->model->first_terms + kind * 3 * F, (size_t)(3 * F) * sizeof(float));
            }
        }
    }
    g->first_edge[g->atoms] = g->edges;
    memset(g->energy, 0, (size_t)(g->atoms * S) * sizeof(double));
}

/* Adds a group's results to those of the batch. */
static void NAME(collect)(const NAME(Group) *g, const int64_t *node_start, const int64_t *copy_start) {
    const Batch *b = g->batch;
    const int64_t S = g->signs, H = g->model->w.hidden, D = (g->model->w.layers + 1 - g->model->w.first_read) * g->model->w.output;
    for (int64_t number = 0; number < g->n_units; number++) {
        const NAME(Unit) *unit = g->units + number;
        const int64_t edge = b->edge_start[unit->graph], edges = b->edge_start[unit->graph + 1] - edge;
        const int64_t atoms = b->atom_start[unit->graph + 1] - b->atom_start[unit->graph];
        for (int64_t k = 0; k < atoms; k++) {
            for (int64_t sign = 0; sign < S; sign++) {
                const int64_t from = (unit->atom + k) * S + sign, to = node_start[sign ? unit->inverse : unit->frame] + k;
                b->node_energy[to] = g->energy[from];
                b->energy[sign ? unit->inverse : unit->frame] += g->energy[from];
                if (b->hidden) memcpy(b->hidden + to * H, g->state + from * H, (size_t)H * sizeof(float));
                if (b->features) memcpy(b->features + to * D, g->features + from * D, (size_t)D * sizeof(float));
            }
        }
        if (!g->backward) continue;
        const double *u = b->rotation + 9 * unit->frame;
        double *grad_u = b->grad_rotation + 9 * unit->frame;
        for (int64_t k = 0; k < edges; k++) {
            const int64_t row = unit->edge + k;
            const double *v = b->vectors + 3 * (edge + k);
            const double distance = sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
            const double along = distance > 0 ? (double)g->grad_distance[row] / distance : 0;
            const float *grad = g->grad_vector + 3 * row;
            if (b->grad_factor) b->grad_factor[edge + k] += (double)g->grad_weight[row] * g->envelope[row];
            for (int x = 0; x < 3; x++) {
                const double value = u[3 * x] * grad[0] + u[3 * x + 1] * grad[1] + u[3 * x + 2] * grad[2] + along * v[x];
                b->grad_vectors[3 * (edge + k) + x] += value;
                if (b->grad_copies) b->grad_copies[3 * (copy_start[unit->frame] + k) + x] = value;
                for (int y = 0; y < 3; y++) grad_u[3 * x + y] += v[x] * grad[y];
            }
        }
    }
}

static int NAME(ascends)(const int64_t *starts, int64_t n, int64_t end) {
    for (int64_t k = 0; k < n; k++)
        if (starts[k + 1] < starts[k]) return 0;
    return starts[0] == 0 && starts[n] == end;
}

/* Whether every index of a batch lies inside its array: 0, or the place of the first wrong field in _CHECKED of
 * engine.py. */
int NAME(fused_check)(const void *handle, const Batch *b) {
    const int64_t kinds = ((const NAME(Model) *)handle)->w.kinds;
    if (!NAME(ascends)(b->atom_start, b->n_graphs, b->n_atoms)) return 1;
    if (!NAME(ascends)(b->edge_start, b->n_graphs, b->n_edges)) return 2;
    if (!NAME(ascends)(b->frame_start, b->n_graphs, b->n_frames)) return 3;
    for (int64_t atom = 0; atom < b->n_atoms; atom++)
        if (b->kind[atom] < 0 || b->kind[atom] >= kinds) return 4;
    for (int64_t graph = 0; graph < b->n_graphs; graph++) {
        const int64_t last = b->atom_start[graph + 1];
        int64_t before = b->atom_start[graph];
        for (int64_t edge = b->edge_start[graph]; edge < b->edge_start[graph + 1]; edge++) {
            if (b->centre[edge] < before || b->centre[edge] >= last) return 5;
            if (b->neighbor[edge] < b->atom_start[graph] || b->neighbor[edge] >= last) return 6;
            before = b->centre[edge];
        }
    }
    return 0;
}

/* Bytes that a batch needs at the same time. */
int64_t NAME(fused_memory)(const void *handle, const Batch *batch) {
    NAME(Unit) *units = malloc((size_t)(batch->n_frames ? batch->n_frames : 1) * sizeof *units);
    if (!units) return -1;
    const int64_t n_units = NAME(units)(batch, units);
    int64_t most = 0;
    for (int64_t start = 0; start < n_units;) {
        NAME(Group) group = {.model = handle, .batch = batch, .backward = batch->grad_vectors != NULL};
        group.threads = batch->threads;
        start = NAME(gather)(&group, units, n_units, start);
        const int64_t size = NAME(place)(&group, NULL);
        most = size > most ? size : most;
    }
    free(units);
    return most;
}

/* Evaluates a batch with a workspace of `fused_memory` bytes, aligned to 64; gradients must be zero before. */
int NAME(fused_evaluate)(const void *handle, const Batch *batch, char *workspace) {
    const int64_t n = batch->n_frames ? batch->n_frames : 1;
    NAME(Unit) *units = malloc((size_t)n * sizeof *units);
    int64_t *starts = malloc((size_t)(2 * n) * sizeof *starts);
    if (!units || !starts) {
        free(units), free(starts);
        return 1;
    }
    int64_t node = 0, copy = 0;
    for (int64_t graph = 0; graph < batch->n_graphs; graph++) {
        for (int64_t frame = batch->frame_start[graph]; frame < batch->frame_start[graph + 1]; frame++) {
            starts[frame] = node, starts[n + frame] = copy;
            node += batch->atom_start[graph + 1] - batch->atom_start[graph];
            copy += batch->edge_start[graph + 1] - batch->edge_start[graph];
        }
    }
    const int64_t n_units = NAME(units)(batch, units);
    for (int64_t start = 0; start < n_units;) {
        NAME(Group) group = {.model = handle, .batch = batch, .backward = batch->grad_vectors != NULL};
        NAME(Group) *g = &group;
        g->threads = batch->threads;
        start = NAME(gather)(g, units, n_units, start);
        NAME(place)(g, workspace);
        NAME(fill)(g);
#ifdef _OPENMP
#pragma omp parallel num_threads((int)batch->threads) if (batch->threads > 1)
        {
            const uint64_t mode = flush_subnormals();
#pragma omp single
            g->threads = omp_get_num_threads(), NAME(divide)(g); /* there may be fewer than asked for */
            NAME(forward)(g, omp_get_thread_num());
            if (g->backward) NAME(backward)(g, omp_get_thread_num());
            restore_subnormals(mode);
        }
#else
        const uint64_t mode = flush_subnormals();
        g->threads = 1;
        NAME(divide)(g);
        NAME(forward)(g, 0);
        if (g->backward) NAME(backward)(g, 0);
        restore_subnormals(mode);
#endif
        NAME(collect)(g, starts, starts + n);
    }
    free(units), free(starts);
    return 0;
}
