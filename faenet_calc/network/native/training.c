/* Energies of FAENet, their derivatives with respect to edges, and the derivatives of a loss of both with respect to
 * the weights: what training on energies and gradient forces takes, in two calls.
 *
 * Included once per instruction set after fused.c, whose vectors, products and sigmoid it uses. The network is
 *
 *     p = [W1 r + b1, W12 G(d) + b12],  q = W2 σ(p) + b2,  e = σ(q)         G: Gaussians of the distance
 *     t = [a, b, s] = Wn h + bn,  x = σ(s),  z_ij = Wf e_ij + a_i + b_j
 *     m_i = scale Σ_j w_ij x_j ⊙ σ(z_ij),  r = Wu m + bu,  h' = h + σ(r)
 *     k = Wi h' + bi,  h'' = h' + Wo σ(k) + bo                              without feed_forward h'' = h'
 *     energy = Σ_l mix_l (v · σ(o_l) + c),  o_l = Wy h_l + by
 *
 * The first call computes the energies E_n of the nodes and g_y = dE/dy of every intermediate y, E = Σ_n seed_n E_n;
 * g of vectors, distances and weights of edges are results. Given derivatives of the loss, Ē_n with respect to E_n and
 * ẏ with respect to the g_y of edges, the second call differentiates
 *
 *     S = Σ_n Ē_n E_n + Ė,   Ė = Σ_n seed_n Ė_n the derivative of E along ẏ,
 *
 * with respect to the weights: ẏ is propagated forwards through the network and b_y = dS/dy backwards,
 *
 *     y = W x:    ẏ = W ẋ,       b_x = Wᵀ b_y,                    dS/dW = b_y xᵀ + g_y ẋᵀ
 *     y = σ(z):   ẏ = σ'(z) ż,   b_z = σ'(z) b_y + σ''(z) ż g_y.
 *
 * In the names of arrays, `dot` is ẏ, `grad` g_y and `back` b_y. First states h_0 do not depend on edges: ḣ_0 = 0.
 *
 * Frames are independent of each other; a group of them goes through a call before the next one. A part, on which one
 * thread works, has consecutive groups and its own sums of derivatives, which are added in the order of the parts.
 */
#include "training.h"

#define EDGES_AT_ONCE 96 /* more than in fused.c: sums over these edges are read and written once for all of them */

/* ---- products for derivatives with respect to weights: c [rows, columns] += aᵀ b over `depth` rows of a and b ---- */

#define OUTER(m)                                                                                                       \
    static inline __attribute__((always_inline)) void NAME(outer_##m)(                                                 \
        int64_t depth, const float *restrict a, int64_t lda, const float *restrict b, int64_t ldb, float *restrict c,  \
        int64_t ldc) {                                                                                                 \
        V left[m], right[m];                                                                                           \
        for (int r = 0; r < m; r++) left[r] = LOAD(c + r * ldc), right[r] = LOAD(c + r * ldc + LANES);                 \
        for (int64_t k = 0; k < depth; k++) {                                                                          \
            const V b0 = LOAD(b + k * ldb), b1 = LOAD(b + k * ldb + LANES);                                            \
            for (int r = 0; r < m; r++) {                                                                              \
                const float value = a[k * lda + r];                                                                    \
                left[r] += value * b0, right[r] += value * b1;                                                         \
            }                                                                                                          \
        }                                                                                                              \
        for (int r = 0; r < m; r++) STORE(c + r * ldc, left[r]), STORE(c + r * ldc + LANES, right[r]);                 \
    }

OUTER(4)
#if ROWS == 12
OUTER(12)
#endif

/* The number of rows is a multiple of 4, the number of columns of PANEL. */
static void NAME(outer)(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda, const float *b,
                        int64_t ldb, float *c, int64_t ldc) {
    for (int64_t column = 0; column < columns; column += PANEL) {
        int64_t row = 0;
#if ROWS == 12
        for (; row + 12 <= rows; row += 12)
            NAME(outer_12)(depth, a + row, lda, b + column, ldb, c + row * ldc + column, ldc);
#endif
        for (; row < rows; row += 4) NAME(outer_4)(depth, a + row, lda, b + column, ldb, c + row * ldc + column, ldc);
    }
}

/* to [columns] += the sum of all rows. */
static void NAME(add_rows)(int64_t rows, int64_t columns, const float *values, int64_t ld, float *to) {
    EACH(k, columns) {
        V sum = LOAD(to + k);
        for (int64_t row = 0; row < rows; row++) sum += LOAD(values + row * ld + k);
        STORE(to + k, sum);
    }
}

/* ---- elementwise functions ---- */

/* σ(z) and its first two derivatives. */
typedef struct {
    V value, first, second;
} NAME(Swish);

static inline __attribute__((always_inline)) NAME(Swish) NAME(swish)(V z) {
    const V s = NAME(sigmoid)(z), value = z * s;
    return (NAME(Swish)){value, s + value * (1.0f - s), (z - 2.0f * value + 2.0f) * s * (1.0f - s)};
}

/* e^x for x <= 0, and 0 below e^-60: products of smaller numbers would be subnormal, which is slow. */
static inline V NAME(exponential)(V x) {
    const V least = -60.0f + (V){0};
    const VI above = x > least;
    const V limited = (V)(((VI)x & above) | ((VI)least & ~above));
    const V shifted = limited * 1.44269504088896341f + 12582912.0f;
    const V n = shifted - 12582912.0f;
    const V r = limited - n * 0.693359375f + n * 2.12194440e-4f;
    V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return (V)((VI)(p * (V)(((VI)shifted << 23) + 0x3f800000)) & above);
}

/* A Gaussian of the distance and its first derivative. */
static inline void NAME(gaussian)(V distance, V number, float spacing, V *value, V *slope) {
    const V t = distance / spacing - number;
    *value = NAME(exponential)(-0.5f * t * t);
    *slope = -t / spacing * *value;
}

static inline V NAME(count_from)(int64_t k) {
    V numbers;
    for (int lane = 0; lane < LANES; lane++) numbers[lane] = (float)(k + lane);
    return numbers;
}

/* to = σ(z) */
static void NAME(swish_of)(int64_t size, const float *z, float *to) {
    EACH(k, size) {
        const V value = LOAD(z + k);
        STORE(to + k, value * NAME(sigmoid)(value));
    }
}

/* to = σ'(z) values */
static void NAME(times_slope)(int64_t size, const float *z, const float *values, float *to) {
    EACH(k, size) STORE(to + k, NAME(swish)(LOAD(z + k)).first * LOAD(values + k));
}

/* b_z = σ'(z) b_y + σ''(z) ż g_y in place of b_y, and g_z = σ'(z) g_y. */
static void NAME(swish_back)(int64_t size, const float *z, const float *dot_z, const float *grad_y, float *back,
                             float *grad_z) {
    EACH(k, size) {
        const NAME(Swish) y = NAME(swish)(LOAD(z + k));
        const V grad = LOAD(grad_y + k);
        STORE(back + k, y.first * LOAD(back + k) + y.second * LOAD(dot_z + k) * grad);
        STORE(grad_z + k, y.first * grad);
    }
}

static void NAME(scale_all)(int64_t size, float scale, float *values) {
    EACH(k, size) STORE(values + k, scale * LOAD(values + k));
}

/* ---- packed weights ---- */

typedef struct {
    float *radial, *edge, *filter, *node, *up, *in, *out, *output;                 /* y = x Wᵀ */
    float *radial_t, *edge_t, *filter_t, *node_t, *up_t, *in_t, *out_t, *output_t; /* dx = dy W */
} NAME(Packed);

/* Packs `count` weights [rows, columns] for both products; without weights it only counts. */
static void NAME(pack_both)(int64_t count, int64_t rows, int64_t columns, const float *weight, float **memory,
                            float **packed, float **packed_t) {
    *packed = *memory, *packed_t = *memory + count * rows * columns;
    *memory += 2 * count * rows * columns;
    for (int64_t n = 0; weight && n < count; n++) {
        const float *from = weight + n * rows * columns;
        float *to = *packed + n * rows * columns, *to_t = *packed_t + n * rows * columns;
        for (int64_t row = 0; row < rows; row++) {
            float *panel = to + (row - row % PANEL) * columns + row % PANEL;
            for (int64_t k = 0; k < columns; k++) panel[k * PANEL] = from[row * columns + k];
            for (int64_t k = 0; k < columns; k += PANEL)
                memcpy(to_t + k * rows + row * PANEL, from + row * columns + k, PANEL * sizeof(float));
        }
    }
}

/* Where packed weights are; packs them if `w` is not NULL. Returns their number. */
static int64_t NAME(pack_all)(const TrainingSizes *s, const TrainingWeights *w, float *memory, NAME(Packed) *p) {
    const int64_t H = s->hidden, F = s->filters, E = s->edge, R = s->radial, W = s->feed_forward, L = s->layers;
    float *next = memory;
    NAME(pack_both)(1, R, s->gaussians, w ? w->radial_weight : NULL, &next, &p->radial, &p->radial_t);
    NAME(pack_both)(1, E, s->directional + R, w ? w->edge_weight : NULL, &next, &p->edge, &p->edge_t);
    NAME(pack_both)(L, F, E, w ? w->filter_weight : NULL, &next, &p->filter, &p->filter_t);
    NAME(pack_both)(L, 3 * F, H, w ? w->node_weight : NULL, &next, &p->node, &p->node_t);
    NAME(pack_both)(L, H, F, w ? w->up_weight : NULL, &next, &p->up, &p->up_t);
    NAME(pack_both)(L, W, H, w ? w->in_weight : NULL, &next, &p->in, &p->in_t);
    NAME(pack_both)(L, H, W, w ? w->out_weight : NULL, &next, &p->out, &p->out_t);
    NAME(pack_both)(1, s->output, H, w ? w->output_weight : NULL, &next, &p->output, &p->output_t);
    return next - memory;
}

/* ---- a group of frames ---- */

typedef struct {
    const TrainingSizes *s;
    const TrainingWeights *w;
    const TrainingBatch *b;
    NAME(Packed) packed;
    TrainingWeights gradients; /* of the part */
    int64_t first_node, nodes, first_edge, edges;
    /* kept from the first call to the second */
    float *state, *terms, *source, *message; /* [layers + 1][nodes, H], [layers][nodes, 3 F], [layers][nodes, F] twice */
    float *update, *middle, *wide, *head;    /* r, h' [layers][nodes, H], k [layers][nodes, W], o [layers + 1][nodes, O] */
    float *grad_state, *grad_wide, *grad_middle; /* of h'' and h' [layers][nodes, H], of σ(k) [layers][nodes, W] */
    float *grad_message, *grad_terms;            /* of Σ [layers][nodes, F], of a, b and x [layers][nodes, 3 F] */
    float *inner, *outer, *edge_state;           /* p [edges, C], q and e [edges, E] */
    float *filter, *grad_edge, *grad_inner;      /* Wf e [layers][edges, F], of e [edges, E], of σ(p) [edges, C] */
    /* of the second call */
    float *dot_state, *dot_terms, *dot_source, *dot_message, *dot_update, *dot_middle, *dot_wide;
    float *dot_inner, *dot_outer, *dot_edge, *dot_filter, *back_edge;
    float *back_state, *back_wide, *back_terms, *back_message;
    /* of either */
    float *one, *two; /* [nodes, widest] */
} NAME(Chunk);

/* Places the arrays of a group and returns the number of floats; with memory NULL it only counts. */
#define TAKE(field, count)                                                                                             \
    do {                                                                                                               \
        if (memory) c->field = memory + used;                                                                          \
        used += ((count) + 15) / 16 * 16;                                                                              \
    } while (0)

static int64_t NAME(place_kept)(NAME(Chunk) *c, float *memory) {
    const TrainingSizes *s = c->s;
    const int64_t H = s->hidden, F = s->filters, E = s->edge, C = s->directional + s->radial, L = s->layers;
    const int64_t nodes = c->nodes, edges = c->edges, W = s->feed_forward;
    int64_t used = 0;
    TAKE(state, (L + 1) * nodes * H);
    TAKE(terms, L * nodes * 3 * F);
    TAKE(source, L * nodes * F);
    TAKE(message, L * nodes * F);
    TAKE(update, L * nodes * H);
    TAKE(middle, L * nodes * H);
    TAKE(wide, L * nodes * W);
    TAKE(head, (L + 1) * nodes * s->output);
    TAKE(grad_state, L * nodes * H);
    TAKE(grad_wide, L * nodes * W);
    TAKE(grad_middle, L * nodes * H);
    TAKE(grad_message, L * nodes * F);
    TAKE(grad_terms, L * nodes * 3 * F);
    TAKE(inner, edges * C);
    TAKE(outer, edges * E);
    TAKE(edge_state, edges * E);
    TAKE(filter, L * edges * F);
    TAKE(grad_edge, edges * E);
    TAKE(grad_inner, edges * C);
    return used;
}

static int64_t NAME(widest)(const TrainingSizes *s) {
    const int64_t widths[4] = {s->hidden, 3 * s->filters, s->feed_forward, s->output};
    int64_t most = 0;
    for (int k = 0; k < 4; k++) most = widths[k] > most ? widths[k] : most;
    return most;
}

static int64_t NAME(place_work)(NAME(Chunk) *c, float *memory, int second) {
    const TrainingSizes *s = c->s;
    const int64_t H = s->hidden, F = s->filters, E = s->edge, C = s->directional + s->radial, L = s->layers;
    const int64_t nodes = c->nodes, edges = c->edges, W = s->feed_forward;
    int64_t used = 0;
    TAKE(one, nodes * NAME(widest)(s));
    TAKE(two, nodes * NAME(widest)(s));
    if (!second) return used;
    TAKE(dot_state, (L + 1) * nodes * H);
    TAKE(dot_terms, L * nodes * 3 * F);
    TAKE(dot_source, L * nodes * F);
    TAKE(dot_message, L * nodes * F);
    TAKE(dot_update, L * nodes * H);
    TAKE(dot_middle, L * nodes * H);
    TAKE(dot_wide, L * nodes * W);
    TAKE(dot_inner, edges * C);
    TAKE(dot_outer, edges * E);
    TAKE(dot_edge, edges * E);
    TAKE(dot_filter, L * edges * F);
    TAKE(back_edge, edges * E);
    TAKE(back_state, nodes * H);
    TAKE(back_wide, nodes * W);
    TAKE(back_terms, nodes * 3 * F);
    TAKE(back_message, nodes * F);
    return used;
}
#undef TAKE

#define EACH_TILE(start, rows, edges)                                                                                  \
    for (int64_t start = 0, rows; start < (edges) && (rows = (edges) - start < EDGES_AT_ONCE ? (edges) - start : EDGES_AT_ONCE); start += EDGES_AT_ONCE)

/* ---- first call ---- */

static void NAME(embed)(NAME(Chunk) *c) {
    const TrainingSizes *s = c->s;
    const TrainingWeights *w = c->w;
    const int64_t E = s->edge, D = s->directional, R = s->radial, C = D + R, G = s->gaussians;
    const float *vectors = c->b->vectors + 3 * c->first_edge, *distances = c->b->distances + c->first_edge;
    float basis[EDGES_AT_ONCE * G] __attribute__((aligned(64))), active[EDGES_AT_ONCE * C] __attribute__((aligned(64)));
    EACH_TILE(start, rows, c->edges) {
        float *inner = c->inner + start * C, *outer = c->outer + start * E;
        for (int64_t r = 0; r < rows; r++) {
            const float *v = vectors + 3 * (start + r), distance = distances[start + r];
            EACH(k, D)
                STORE(inner + r * C + k, LOAD(w->direction_bias + k) + v[0] * LOAD(w->direction_weight + k) +
                                             v[1] * LOAD(w->direction_weight + D + k) +
                                             v[2] * LOAD(w->direction_weight + 2 * D + k));
            EACH(k, G) {
                V value, slope;
                NAME(gaussian)(distance + (V){0}, NAME(count_from)(k), (float)s->spacing, &value, &slope);
                STORE(basis + r * G + k, value);
            }
        }
        NAME(product)(rows, R, G, basis, G, c->packed.radial, w->radial_bias, inner + D, C, 0);
        NAME(swish_of)(rows * C, inner, active);
        NAME(product)(rows, E, C, active, C, c->packed.edge, w->edge_bias, outer, E, 0);
        NAME(swish_of)(rows * E, outer, c->edge_state + start * E);
    }
}

/* Sums of the messages of a layer. */
static void NAME(gather_messages)(NAME(Chunk) *c, int64_t layer) {
    const int64_t F = c->s->filters, E = c->s->edge, first = c->first_node;
    const float *terms = c->terms + layer * c->nodes * 3 * F, *source = c->source + layer * c->nodes * F;
    float *message = c->message + layer * c->nodes * F, *filter = c->filter + layer * c->edges * F;
    const int64_t *centre = c->b->centre + c->first_edge, *neighbor = c->b->neighbor + c->first_edge;
    const float *weights = c->b->weights + c->first_edge;
    memset(message, 0, (size_t)(c->nodes * F) * sizeof(float));
    EACH_TILE(start, rows, c->edges) {
        NAME(product)(rows, F, E, c->edge_state + start * E, E, c->packed.filter + layer * F * E, NULL, filter + start * F,
                      F, 0);
        for (int64_t edge = start; edge < start + rows; edge++) {
            const int64_t i = centre[edge] - first, j = neighbor[edge] - first;
            const float weight = weights[edge], *a = terms + i * 3 * F, *b = terms + j * 3 * F + F;
            EACH(k, F) {
                const V z = LOAD(filter + edge * F + k) + LOAD(a + k) + LOAD(b + k);
                STORE(message + i * F + k,
                      LOAD(message + i * F + k) + weight * LOAD(source + j * F + k) * z * NAME(sigmoid)(z));
            }
        }
    }
}

static void NAME(step_forward)(NAME(Chunk) *c, int64_t layer) {
    const TrainingSizes *s = c->s;
    const TrainingWeights *w = c->w;
    const int64_t H = s->hidden, F = s->filters, W = s->feed_forward, n = c->nodes;
    float *state = c->state + layer * n * H, *after = state + n * H, *terms = c->terms + layer * n * 3 * F;
    float *message = c->message + layer * n * F, *update = c->update + layer * n * H, *middle = c->middle + layer * n * H;
    NAME(product)(n, 3 * F, H, state, H, c->packed.node + layer * 3 * F * H, w->node_bias + layer * 3 * F, terms, 3 * F, 0);
    for (int64_t node = 0; node < n; node++)
        NAME(swish_of)(F, terms + node * 3 * F + 2 * F, c->source + (layer * n + node) * F);
    NAME(gather_messages)(c, layer);
    NAME(scale_all)(n * F, (float)s->message_scale, message);
    NAME(product)(n, H, F, message, F, c->packed.up + layer * H * F, w->up_bias + layer * H, update, H, 0);
    EACH(k, n * H) STORE(middle + k, LOAD(state + k) + NAME(swish)(LOAD(update + k)).value);
    if (!W) {
        memcpy(after, middle, (size_t)(n * H) * sizeof(float));
        return;
    }
    float *wide = c->wide + layer * n * W, *active = c->one;
    NAME(product)(n, W, H, middle, H, c->packed.in + layer * W * H, w->in_bias + layer * W, wide, W, 0);
    NAME(swish_of)(n * W, wide, active);
    for (int64_t node = 0; node < n; node++)
        EACH(k, H) STORE(after + node * H + k, LOAD(middle + node * H + k) + LOAD(w->out_bias + layer * H + k));
    NAME(product)(n, H, W, active, W, c->packed.out + layer * H * W, NULL, after, H, 1);
}

/* Energies of the states after `layer` layers. */
static void NAME(read_energy)(NAME(Chunk) *c, int64_t layer) {
    const int64_t H = c->s->hidden, O = c->s->output, n = c->nodes;
    if (layer < c->s->first_read) return;
    float *head = c->head + layer * n * O;
    NAME(product)(n, O, H, c->state + layer * n * H, H, c->packed.output, c->w->output_bias, head, O, 0);
    for (int64_t node = 0; node < n; node++) {
        V sum = {0};
        EACH(k, O) sum += LOAD(c->w->energy_weight + k) * NAME(swish)(LOAD(head + node * O + k)).value;
        c->b->energy[c->first_node + node] += (double)c->w->mixing[layer] * (NAME(total)(sum) + c->w->energy_bias[0]);
    }
}

/* to [nodes, H] += dE/d(states after `layer` layers) through the output block alone. */
static void NAME(read_energy_backward)(NAME(Chunk) *c, int64_t layer, float *to) {
    const int64_t H = c->s->hidden, O = c->s->output, n = c->nodes;
    if (layer < c->s->first_read) return;
    const float *head = c->head + layer * n * O, *seed = c->b->seed + c->first_node;
    for (int64_t node = 0; node < n; node++) {
        const float factor = seed[node] * c->w->mixing[layer];
        EACH(k, O)
            STORE(c->one + node * O + k,
                  factor * LOAD(c->w->energy_weight + k) * NAME(swish)(LOAD(head + node * O + k)).first);
    }
    NAME(product)(n, H, O, c->one, O, c->packed.output_t, NULL, to, H, 1);
}

/* Derivatives with respect to edge states (added), terms of the nodes and weights of edges (added). */
static void NAME(gather_backward)(NAME(Chunk) *c, int64_t layer) {
    const int64_t F = c->s->filters, E = c->s->edge, first = c->first_node;
    const float *terms = c->terms + layer * c->nodes * 3 * F, *source = c->source + layer * c->nodes * F;
    const float *filter = c->filter + layer * c->edges * F, *grad_message = c->grad_message + layer * c->nodes * F;
    float *grad_terms = c->grad_terms + layer * c->nodes * 3 * F;
    const int64_t *centre = c->b->centre + c->first_edge, *neighbor = c->b->neighbor + c->first_edge;
    const float *weights = c->b->weights + c->first_edge;
    float *grad_weights = c->b->grad_weights + c->first_edge;
    float grad_z[EDGES_AT_ONCE * F] __attribute__((aligned(64)));
    memset(grad_terms, 0, (size_t)(c->nodes * 3 * F) * sizeof(float));
    EACH_TILE(start, rows, c->edges) {
        for (int64_t edge = start; edge < start + rows; edge++) {
            const int64_t i = centre[edge] - first, j = neighbor[edge] - first;
            const float weight = weights[edge], *a = terms + i * 3 * F, *b = terms + j * 3 * F + F;
            float *grad_a = grad_terms + i * 3 * F, *grad_b = grad_terms + j * 3 * F + F, *to = grad_z + (edge - start) * F;
            V along = {0};
            EACH(k, F) {
                const NAME(Swish) f = NAME(swish)(LOAD(filter + edge * F + k) + LOAD(a + k) + LOAD(b + k));
                const V upstream = LOAD(grad_message + i * F + k), both = LOAD(source + j * F + k) * upstream;
                const V grad = weight * both * f.first;
                along += both * f.value;
                STORE(to + k, grad);
                if (!layer) continue; /* the first states do not depend on positions */
                STORE(grad_a + k, LOAD(grad_a + k) + grad);
                STORE(grad_b + k, LOAD(grad_b + k) + grad);
                STORE(grad_b + F + k, LOAD(grad_b + F + k) + weight * upstream * f.value);
            }
            grad_weights[edge] = (layer + 1 < c->s->layers ? grad_weights[edge] : 0) + NAME(total)(along);
        }
        NAME(product)(rows, E, F, grad_z, F, c->packed.filter_t + layer * F * E, NULL, c->grad_edge + start * E, E,
                      layer + 1 < c->s->layers);
    }
}

static void NAME(step_backward)(NAME(Chunk) *c, int64_t layer) {
    const TrainingSizes *s = c->s;
    const int64_t H = s->hidden, F = s->filters, W = s->feed_forward, n = c->nodes;
    float *grad = c->grad_state + layer * n * H, *middle = c->grad_middle + layer * n * H;
    float *grad_message = c->grad_message + layer * n * F, *grad_terms = c->grad_terms + layer * n * 3 * F;
    memcpy(middle, grad, (size_t)(n * H) * sizeof(float));
    if (W) {
        float *wide = c->grad_wide + layer * n * W;
        NAME(product)(n, W, H, grad, H, c->packed.out_t + layer * H * W, NULL, wide, W, 0);
        NAME(times_slope)(n * W, c->wide + layer * n * W, wide, c->one);
        NAME(product)(n, H, W, c->one, W, c->packed.in_t + layer * W * H, NULL, middle, H, 1);
    }
    NAME(times_slope)(n * H, c->update + layer * n * H, middle, c->one);
    NAME(product)(n, F, H, c->one, H, c->packed.up_t + layer * H * F, NULL, grad_message, F, 0);
    NAME(scale_all)(n * F, (float)s->message_scale, grad_message);
    NAME(gather_backward)(c, layer);
    if (!layer) return;
    for (int64_t node = 0; node < n; node++) {
        const float *from = grad_terms + node * 3 * F;
        memcpy(c->one + node * 3 * F, from, (size_t)(2 * F) * sizeof(float));
        NAME(times_slope)(F, c->terms + (layer * n + node) * 3 * F + 2 * F, from + 2 * F, c->one + node * 3 * F + 2 * F);
    }
    float *before = grad - n * H;
    memcpy(before, middle, (size_t)(n * H) * sizeof(float));
    NAME(product)(n, H, 3 * F, c->one, 3 * F, c->packed.node_t + layer * 3 * F * H, NULL, before, H, 1);
    NAME(read_energy_backward)(c, layer, before);
}

static void NAME(embed_backward)(NAME(Chunk) *c) {
    const TrainingSizes *s = c->s;
    const TrainingWeights *w = c->w;
    const int64_t E = s->edge, D = s->directional, R = s->radial, C = D + R, G = s->gaussians;
    const float *distances = c->b->distances + c->first_edge;
    float *grad_vectors = c->b->grad_vectors + 3 * c->first_edge, *grad_distances = c->b->grad_distances + c->first_edge;
    float tile[EDGES_AT_ONCE * (E > C ? E : C)] __attribute__((aligned(64))), basis[EDGES_AT_ONCE * G] __attribute__((aligned(64)));
    EACH_TILE(start, rows, c->edges) {
        float *grad_inner = c->grad_inner + start * C;
        NAME(times_slope)(rows * E, c->outer + start * E, c->grad_edge + start * E, tile);
        NAME(product)(rows, C, E, tile, E, c->packed.edge_t, NULL, grad_inner, C, 0);
        NAME(times_slope)(rows * C, c->inner + start * C, grad_inner, tile);
        NAME(product)(rows, G, R, tile + D, C, c->packed.radial_t, NULL, basis, G, 0);
        for (int64_t r = 0; r < rows; r++) {
            V x = {0}, y = {0}, z = {0}, along = {0};
            EACH(k, D) {
                const V grad = LOAD(tile + r * C + k);
                x += grad * LOAD(w->direction_weight + k);
                y += grad * LOAD(w->direction_weight + D + k);
                z += grad * LOAD(w->direction_weight + 2 * D + k);
            }
            EACH(k, G) {
                V value, slope;
                NAME(gaussian)(distances[start + r] + (V){0}, NAME(count_from)(k), (float)s->spacing, &value, &slope);
                along += slope * LOAD(basis + r * G + k);
            }
            float *to = grad_vectors + 3 * (start + r);
            to[0] = NAME(total)(x), to[1] = NAME(total)(y), to[2] = NAME(total)(z);
            grad_distances[start + r] = NAME(total)(along);
        }
    }
}

static void NAME(first_call)(NAME(Chunk) *c) {
    const int64_t H = c->s->hidden, L = c->s->layers, n = c->nodes;
    memcpy(c->state, c->b->states + c->first_node * H, (size_t)(n * H) * sizeof(float));
    memset(c->b->energy + c->first_node, 0, (size_t)n * sizeof(double));
    NAME(embed)(c);
    for (int64_t layer = 0; layer <= L; layer++) {
        NAME(read_energy)(c, layer);
        if (layer < L) NAME(step_forward)(c, layer);
    }
    memset(c->grad_state + (L - 1) * n * H, 0, (size_t)(n * H) * sizeof(float));
    NAME(read_energy_backward)(c, L, c->grad_state + (L - 1) * n * H);
    for (int64_t layer = L - 1; layer >= 0; layer--) NAME(step_backward)(c, layer);
    NAME(embed_backward)(c);
}

/* ---- second call: ẏ forwards ---- */

static void NAME(embed_dot)(NAME(Chunk) *c) {
    const TrainingSizes *s = c->s;
    const TrainingWeights *w = c->w;
    const int64_t E = s->edge, D = s->directional, R = s->radial, C = D + R, G = s->gaussians;
    const float *distances = c->b->distances + c->first_edge, *dot_vectors = c->b->grad_grad_vectors + 3 * c->first_edge;
    const float *dot_distances = c->b->grad_grad_distances + c->first_edge;
    float basis[EDGES_AT_ONCE * G] __attribute__((aligned(64))), active[EDGES_AT_ONCE * C] __attribute__((aligned(64)));
    EACH_TILE(start, rows, c->edges) {
        float *dot_inner = c->dot_inner + start * C, *dot_outer = c->dot_outer + start * E;
        for (int64_t r = 0; r < rows; r++) {
            const float *v = dot_vectors + 3 * (start + r);
            EACH(k, D)
                STORE(dot_inner + r * C + k, v[0] * LOAD(w->direction_weight + k) + v[1] * LOAD(w->direction_weight + D + k) +
                                                 v[2] * LOAD(w->direction_weight + 2 * D + k));
            EACH(k, G) {
                V value, slope;
                NAME(gaussian)(distances[start + r] + (V){0}, NAME(count_from)(k), (float)s->spacing, &value, &slope);
                STORE(basis + r * G + k, dot_distances[start + r] * slope);
            }
        }
        NAME(product)(rows, R, G, basis, G, c->packed.radial, NULL, dot_inner + D, C, 0);
        NAME(times_slope)(rows * C, c->inner + start * C, dot_inner, active);
        NAME(product)(rows, E, C, active, C, c->packed.edge, NULL, dot_outer, E, 0);
        NAME(times_slope)(rows * E, c->outer + start * E, dot_outer, c->dot_edge + start * E);
    }
}

static void NAME(gather_dot)(NAME(Chunk) *c, int64_t layer) {
    const int64_t F = c->s->filters, E = c->s->edge, first = c->first_node, n = c->nodes;
    const float *terms = c->terms + layer * n * 3 * F, *source = c->source + layer * n * F;
    const float *dot_terms = c->dot_terms + layer * n * 3 * F, *dot_source = c->dot_source + layer * n * F;
    const float *filter = c->filter + layer * c->edges * F;
    float *dot_message = c->dot_message + layer * n * F, *dot_filter = c->dot_filter + layer * c->edges * F;
    const int64_t *centre = c->b->centre + c->first_edge, *neighbor = c->b->neighbor + c->first_edge;
    const float *weights = c->b->weights + c->first_edge, *dot_weights = c->b->grad_grad_weights + c->first_edge;
    memset(dot_message, 0, (size_t)(n * F) * sizeof(float));
    EACH_TILE(start, rows, c->edges) {
        NAME(product)(rows, F, E, c->dot_edge + start * E, E, c->packed.filter + layer * F * E, NULL,
                      dot_filter + start * F, F, 0);
        for (int64_t edge = start; edge < start + rows; edge++) {
            const int64_t i = centre[edge] - first, j = neighbor[edge] - first;
            const float weight = weights[edge], dot_weight = dot_weights[edge];
            EACH(k, F) {
                const NAME(Swish) f = NAME(swish)(LOAD(filter + edge * F + k) + LOAD(terms + i * 3 * F + k) +
                                                  LOAD(terms + j * 3 * F + F + k));
                const V dot_z = LOAD(dot_filter + edge * F + k) + LOAD(dot_terms + i * 3 * F + k) +
                                LOAD(dot_terms + j * 3 * F + F + k);
                const V x = LOAD(source + j * F + k);
                const V dot = (dot_weight * x + weight * LOAD(dot_source + j * F + k)) * f.value + weight * x * f.first * dot_z;
                STORE(dot_message + i * F + k, LOAD(dot_message + i * F + k) + dot);
            }
        }
    }
}

static void NAME(step_dot)(NAME(Chunk) *c, int64_t layer) {
    const TrainingSizes *s = c->s;
    const int64_t H = s->hidden, F = s->filters, W = s->feed_forward, n = c->nodes;
    float *state = c->dot_state + layer * n * H, *after = state + n * H, *terms = c->dot_terms + layer * n * 3 * F;
    float *message = c->dot_message + layer * n * F, *update = c->dot_update + layer * n * H;
    float *middle = c->dot_middle + layer * n * H;
    NAME(product)(n, 3 * F, H, state, H, c->packed.node + layer * 3 * F * H, NULL, terms, 3 * F, 0);
    for (int64_t node = 0; node < n; node++)
        NAME(times_slope)(F, c->terms + (layer * n + node) * 3 * F + 2 * F, terms + node * 3 * F + 2 * F,
                          c->dot_source + (layer * n + node) * F);
    NAME(gather_dot)(c, layer);
    NAME(scale_all)(n * F, (float)s->message_scale, message);
    NAME(product)(n, H, F, message, F, c->packed.up + layer * H * F, NULL, update, H, 0);
    NAME(times_slope)(n * H, c->update + layer * n * H, update, middle);
    EACH(k, n * H) STORE(middle + k, LOAD(middle + k) + LOAD(state + k));
    memcpy(after, middle, (size_t)(n * H) * sizeof(float));
    if (!W) return;
    float *wide = c->dot_wide + layer * n * W;
    NAME(product)(n, W, H, middle, H, c->packed.in + layer * W * H, NULL, wide, W, 0);
    NAME(times_slope)(n * W, c->wide + layer * n * W, wide, c->one);
    NAME(product)(n, H, W, c->one, W, c->packed.out + layer * H * W, NULL, after, H, 1);
}

/* ---- second call: b backwards, and the derivatives with respect to the weights ---- */

/* Derivatives of y = W x [rows] with respect to W [out, in] and the bias. */
static void NAME(linear_gradient)(int64_t rows, int64_t out, int64_t in, const float *back_y, const float *grad_y, int64_t ldy,
                                  const float *x, const float *dot_x, int64_t ldx, float *weight, float *bias) {
    NAME(outer)(out, in, rows, back_y, ldy, x, ldx, weight, in);
    NAME(outer)(out, in, rows, grad_y, ldy, dot_x, ldx, weight, in);
    if (bias) NAME(add_rows)(rows, out, back_y, ldy, bias);
}

/* Adds the parts of S that come from the states after `layer` layers to b of these states. */
static void NAME(read_energy_back)(NAME(Chunk) *c, int64_t layer) {
    const TrainingWeights *w = c->w;
    TrainingWeights *to = &c->gradients;
    const int64_t H = c->s->hidden, O = c->s->output, n = c->nodes;
    if (layer < c->s->first_read) return;
    const float *head = c->head + layer * n * O, *state = c->state + layer * n * H, mix = w->mixing[layer];
    const float *dot_state = c->dot_state + layer * n * H;
    float *back = c->one, *grad = c->two;
    double of_bias = 0, of_mixing = 0;
    NAME(product)(n, O, H, dot_state, H, c->packed.output, NULL, back, O, 0); /* ȯ, replaced by b */
    for (int64_t node = 0; node < n; node++) {
        const float given = c->b->grad_energy[c->first_node + node], seed = c->b->seed[c->first_node + node];
        V sum = {0};
        EACH(k, O) {
            const NAME(Swish) y = NAME(swish)(LOAD(head + node * O + k));
            const V v = LOAD(w->energy_weight + k), dot = LOAD(back + node * O + k);
            const V parts = given * y.value + seed * y.first * dot;
            sum += v * parts;
            STORE(to->energy_weight + k, LOAD(to->energy_weight + k) + mix * parts);
            STORE(back + node * O + k, mix * v * (given * y.first + seed * y.second * dot));
            STORE(grad + node * O + k, mix * v * seed * y.first);
        }
        of_mixing += (double)NAME(total)(sum) + (double)given * w->energy_bias[0];
        of_bias += (double)mix * given;
    }
    to->mixing[layer] += (float)of_mixing, to->energy_bias[0] += (float)of_bias;
    NAME(linear_gradient)(n, O, H, back, grad, O, state, dot_state, H, to->output_weight, to->output_bias);
    NAME(product)(n, H, O, back, O, c->packed.output_t, NULL, c->back_state, H, 1);
}

static void NAME(gather_back)(NAME(Chunk) *c, int64_t layer) {
    const int64_t F = c->s->filters, E = c->s->edge, first = c->first_node, n = c->nodes;
    const float *terms = c->terms + layer * n * 3 * F, *source = c->source + layer * n * F;
    const float *dot_terms = c->dot_terms + layer * n * 3 * F, *dot_source = c->dot_source + layer * n * F;
    const float *filter = c->filter + layer * c->edges * F, *dot_filter = c->dot_filter + layer * c->edges * F;
    const float *grad_message = c->grad_message + layer * n * F;
    const int64_t *centre = c->b->centre + c->first_edge, *neighbor = c->b->neighbor + c->first_edge;
    const float *weights = c->b->weights + c->first_edge, *dot_weights = c->b->grad_grad_weights + c->first_edge;
    float back_z[EDGES_AT_ONCE * F] __attribute__((aligned(64))), grad_z[EDGES_AT_ONCE * F] __attribute__((aligned(64)));
    memset(c->back_terms, 0, (size_t)(n * 3 * F) * sizeof(float));
    EACH_TILE(start, rows, c->edges) {
        for (int64_t edge = start; edge < start + rows; edge++) {
            const int64_t i = centre[edge] - first, j = neighbor[edge] - first, row = (edge - start) * F;
            const float weight = weights[edge], dot_weight = dot_weights[edge];
            float *back_a = c->back_terms + i * 3 * F, *back_b = c->back_terms + j * 3 * F + F;
            EACH(k, F) {
                const NAME(Swish) f = NAME(swish)(LOAD(filter + edge * F + k) + LOAD(terms + i * 3 * F + k) +
                                                  LOAD(terms + j * 3 * F + F + k));
                const V dot_z = LOAD(dot_filter + edge * F + k) + LOAD(dot_terms + i * 3 * F + k) +
                                LOAD(dot_terms + j * 3 * F + F + k);
                const V x = LOAD(source + j * F + k), grad_m = LOAD(grad_message + i * F + k);
                const V back_m = LOAD(c->back_message + i * F + k), grad_f = weight * x * grad_m;
                const V back_f = weight * x * back_m + (dot_weight * x + weight * LOAD(dot_source + j * F + k)) * grad_m;
                const V back = f.first * back_f + f.second * dot_z * grad_f;
                const V back_x = weight * f.value * back_m + (dot_weight * f.value + weight * f.first * dot_z) * grad_m;
                STORE(back_z + row + k, back);
                STORE(grad_z + row + k, f.first * grad_f);
                STORE(back_a + k, LOAD(back_a + k) + back);
                STORE(back_b + k, LOAD(back_b + k) + back);
                STORE(back_b + F + k, LOAD(back_b + F + k) + back_x);
            }
        }
        NAME(linear_gradient)(rows, F, E, back_z, grad_z, F, c->edge_state + start * E, c->dot_edge + start * E, E,
                              c->gradients.filter_weight + layer * F * E, NULL);
        NAME(product)(rows, E, F, back_z, F, c->packed.filter_t + layer * F * E, NULL, c->back_edge + start * E, E,
                      layer + 1 < c->s->layers);
    }
}

/* b of the states before a layer, in place of those after it. */
static void NAME(step_back)(NAME(Chunk) *c, int64_t layer) {
    const TrainingSizes *s = c->s;
    TrainingWeights *to = &c->gradients;
    const int64_t H = s->hidden, F = s->filters, W = s->feed_forward, n = c->nodes;
    const float *terms = c->terms + layer * n * 3 * F, *dot_terms = c->dot_terms + layer * n * 3 * F;
    float *back = c->back_state, *one = c->one, *two = c->two;
    if (W) {
        const float *wide = c->wide + layer * n * W, *dot_wide = c->dot_wide + layer * n * W;
        NAME(swish_of)(n * W, wide, one);
        NAME(times_slope)(n * W, wide, dot_wide, two);
        NAME(linear_gradient)(n, H, W, back, c->grad_state + layer * n * H, H, one, two, W, to->out_weight + layer * H * W,
                              to->out_bias + layer * H);
        NAME(product)(n, W, H, back, H, c->packed.out_t + layer * H * W, NULL, c->back_wide, W, 0);
        NAME(swish_back)(n * W, wide, dot_wide, c->grad_wide + layer * n * W, c->back_wide, one);
        NAME(linear_gradient)(n, W, H, c->back_wide, one, W, c->middle + layer * n * H, c->dot_middle + layer * n * H, H,
                              to->in_weight + layer * W * H, to->in_bias + layer * W);
        NAME(product)(n, H, W, c->back_wide, W, c->packed.in_t + layer * W * H, NULL, back, H, 1);
    }
    memcpy(one, back, (size_t)(n * H) * sizeof(float));
    NAME(swish_back)(n * H, c->update + layer * n * H, c->dot_update + layer * n * H, c->grad_middle + layer * n * H, one, two);
    NAME(linear_gradient)(n, H, F, one, two, H, c->message + layer * n * F, c->dot_message + layer * n * F, F,
                          to->up_weight + layer * H * F, to->up_bias + layer * H);
    NAME(product)(n, F, H, one, H, c->packed.up_t + layer * H * F, NULL, c->back_message, F, 0);
    NAME(scale_all)(n * F, (float)s->message_scale, c->back_message);
    NAME(gather_back)(c, layer);
    for (int64_t node = 0; node < n; node++) {
        const int64_t row = node * 3 * F, of_source = row + 2 * F;
        const float *grad = c->grad_terms + layer * n * 3 * F + row; /* zero in the first layer */
        memcpy(one + row, grad, (size_t)(2 * F) * sizeof(float));
        NAME(swish_back)(F, terms + of_source, dot_terms + of_source, grad + 2 * F, c->back_terms + of_source, one + of_source);
    }
    NAME(linear_gradient)(n, 3 * F, H, c->back_terms, one, 3 * F, c->state + layer * n * H, c->dot_state + layer * n * H, H,
                          to->node_weight + layer * 3 * F * H, to->node_bias + layer * 3 * F);
    NAME(product)(n, H, 3 * F, c->back_terms, 3 * F, c->packed.node_t + layer * 3 * F * H, NULL, back, H, 1);
}

static void NAME(embed_back)(NAME(Chunk) *c) {
    const TrainingSizes *s = c->s;
    TrainingWeights *to = &c->gradients;
    const int64_t E = s->edge, D = s->directional, R = s->radial, C = D + R, G = s->gaussians;
    const float *distances = c->b->distances + c->first_edge, *dot_distances = c->b->grad_grad_distances + c->first_edge;
    const float *vectors = c->b->vectors + 3 * c->first_edge, *dot_vectors = c->b->grad_grad_vectors + 3 * c->first_edge;
    float back_outer[EDGES_AT_ONCE * E] __attribute__((aligned(64))), grad_outer[EDGES_AT_ONCE * E] __attribute__((aligned(64)));
    float back_inner[EDGES_AT_ONCE * C] __attribute__((aligned(64))), grad_inner[EDGES_AT_ONCE * C] __attribute__((aligned(64)));
    float active[EDGES_AT_ONCE * C] __attribute__((aligned(64))), dot_active[EDGES_AT_ONCE * C] __attribute__((aligned(64)));
    float basis[EDGES_AT_ONCE * G] __attribute__((aligned(64))), dot_basis[EDGES_AT_ONCE * G] __attribute__((aligned(64)));
    EACH_TILE(start, rows, c->edges) {
        const float *inner = c->inner + start * C, *dot_inner = c->dot_inner + start * C;
        memcpy(back_outer, c->back_edge + start * E, (size_t)(rows * E) * sizeof(float));
        NAME(swish_back)(rows * E, c->outer + start * E, c->dot_outer + start * E, c->grad_edge + start * E, back_outer,
                         grad_outer);
        NAME(swish_of)(rows * C, inner, active);
        NAME(times_slope)(rows * C, inner, dot_inner, dot_active);
        NAME(linear_gradient)(rows, E, C, back_outer, grad_outer, E, active, dot_active, C, to->edge_weight, to->edge_bias);
        NAME(product)(rows, C, E, back_outer, E, c->packed.edge_t, NULL, back_inner, C, 0);
        NAME(swish_back)(rows * C, inner, dot_inner, c->grad_inner + start * C, back_inner, grad_inner);
        for (int64_t r = 0; r < rows; r++) {
            EACH(k, G) {
                V value, slope;
                NAME(gaussian)(distances[start + r] + (V){0}, NAME(count_from)(k), (float)s->spacing, &value, &slope);
                STORE(basis + r * G + k, value);
                STORE(dot_basis + r * G + k, dot_distances[start + r] * slope);
            }
        }
        NAME(linear_gradient)(rows, R, G, back_inner + D, grad_inner + D, C, basis, dot_basis, G, to->radial_weight,
                              to->radial_bias);
        NAME(add_rows)(rows, D, back_inner, C, to->direction_bias);
        EACH(k, D) {
            V x = LOAD(to->direction_weight + k), y = LOAD(to->direction_weight + D + k);
            V z = LOAD(to->direction_weight + 2 * D + k);
            for (int64_t r = 0; r < rows; r++) {
                const float *v = vectors + 3 * (start + r), *dot = dot_vectors + 3 * (start + r);
                const V back = LOAD(back_inner + r * C + k), grad = LOAD(grad_inner + r * C + k);
                x += v[0] * back + dot[0] * grad, y += v[1] * back + dot[1] * grad, z += v[2] * back + dot[2] * grad;
            }
            STORE(to->direction_weight + k, x), STORE(to->direction_weight + D + k, y);
            STORE(to->direction_weight + 2 * D + k, z);
        }
    }
}

static void NAME(second_call)(NAME(Chunk) *c) {
    const int64_t H = c->s->hidden, L = c->s->layers, n = c->nodes;
    memset(c->dot_state, 0, (size_t)(n * H) * sizeof(float));
    NAME(embed_dot)(c);
    for (int64_t layer = 0; layer < L; layer++) NAME(step_dot)(c, layer);
    memset(c->back_state, 0, (size_t)(n * H) * sizeof(float));
    NAME(read_energy_back)(c, L);
    for (int64_t layer = L - 1; layer >= 0; layer--) {
        NAME(step_back)(c, layer);
        NAME(read_energy_back)(c, layer);
    }
    NAME(embed_back)(c);
    memcpy(c->b->grad_states + c->first_node * H, c->back_state, (size_t)(n * H) * sizeof(float));
}

/* ---- from a batch to groups ---- */

/* The group that begins with a frame; returns the frame after it. */
static int64_t NAME(next_group)(NAME(Chunk) *c, int64_t frame) {
    const TrainingBatch *b = c->b;
    const int64_t begin = frame++;
    while (frame < b->n_frames && b->edge_start[frame + 1] - b->edge_start[begin] <= b->edges_per_group) frame++;
    c->first_node = b->node_start[begin], c->nodes = b->node_start[frame] - c->first_node;
    c->first_edge = b->edge_start[begin], c->edges = b->edge_start[frame] - c->first_edge;
    return frame;
}

/* Whether the indices of a batch lie inside its arrays: 0, or the number of the first array that is wrong. */
int NAME(training_check)(const TrainingBatch *b, int64_t n_nodes) {
    if (!NAME(ascends)(b->node_start, b->n_frames, n_nodes)) return 1;
    if (!NAME(ascends)(b->edge_start, b->n_frames, b->n_edges)) return 2;
    for (int64_t frame = 0; frame < b->n_frames; frame++) {
        const int64_t first = b->node_start[frame], last = b->node_start[frame + 1];
        for (int64_t edge = b->edge_start[frame]; edge < b->edge_start[frame + 1]; edge++) {
            if (b->centre[edge] < first || b->centre[edge] >= last) return 3;
            if (b->neighbor[edge] < first || b->neighbor[edge] >= last) return 4;
        }
    }
    return 0;
}

/* Floats of packed weights, of what is kept, and of a part's workspace in the first and second call. */
void NAME(training_memory)(const TrainingSizes *s, const TrainingBatch *b, int64_t *sizes) {
    NAME(Chunk) chunk = {.s = s, .b = b};
    NAME(Packed) packed;
    sizes[0] = NAME(pack_all)(s, NULL, NULL, &packed);
    sizes[1] = sizes[2] = sizes[3] = 0;
    for (int64_t frame = 0; frame < b->n_frames;) {
        frame = NAME(next_group)(&chunk, frame);
        sizes[1] += NAME(place_kept)(&chunk, NULL);
        for (int second = 0; second < 2; second++) {
            const int64_t size = NAME(place_work)(&chunk, NULL, second);
            sizes[2 + second] = size > sizes[2 + second] ? size : sizes[2 + second];
        }
    }
}

static float *NAME(moved)(float *address, int64_t by) { return address ? address + by : NULL; }

/* The gradients of a part. */
static TrainingWeights NAME(of_part)(const TrainingBatch *b, int64_t part) {
    TrainingWeights result = b->gradients;
    float **fields = (float **)&result;
    for (size_t k = 0; k < sizeof(result) / sizeof(float *); k++) fields[k] = NAME(moved)(fields[k], part * b->n_gradients);
    return result;
}

/* Runs the first or the second call; `work` is the size of a part's workspace. */
void NAME(training_run)(const TrainingSizes *s, const TrainingWeights *w, const TrainingBatch *b, int second, int64_t work) {
    NAME(Packed) packed;
    NAME(pack_all)(s, second ? NULL : w, b->packed, &packed);
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads((int)b->parts) if (b->parts > 1)
#endif
    for (int64_t part = 0; part < b->parts; part++) {
        const uint64_t mode = flush_subnormals();
        NAME(Chunk) chunk = {.s = s, .w = w, .b = b, .packed = packed};
        if (second) chunk.gradients = NAME(of_part)(b, part);
        float *kept = b->kept;
        for (int64_t frame = 0; frame < b->n_frames;) {
            frame = NAME(next_group)(&chunk, frame);
            const int64_t middle = chunk.first_edge + chunk.edges / 2;
            const int64_t owner = b->n_edges ? middle * b->parts / b->n_edges : 0;
            const int64_t size = NAME(place_kept)(&chunk, kept);
            kept += size;
            if ((owner < b->parts ? owner : b->parts - 1) != part) continue;
            NAME(place_work)(&chunk, b->workspace + part * work, second);
            if (second) NAME(second_call)(&chunk);
            else NAME(first_call)(&chunk);
        }
        restore_subnormals(mode);
    }
    float *sums = b->gradients.direction_weight;
    for (int64_t part = 1; second && part < b->parts; part++)
        for (int64_t k = 0; k < b->n_gradients; k++) sums[k] += sums[part * b->n_gradients + k];
}
