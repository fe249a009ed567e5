/* Uncertainty of the energy, distances from the training data and closest contact of one structure; and whether a
 * repulsion acts in a batch of structures.
 *
 * Included after fused.c, once per instruction set. Symbols are those of uncertainty.py: f_i features of an atom,
 * averaged over frames, M lower triangular, σ = |M Σ_i f_i|.
 */
#include "examine.h"

/* σ from Σ_i f_i. */
static double NAME(deviation)(const Examiner *e, const double *sum, float *product) {
    const float *entry = e->factor;
    double variance = 0;
    memset(product, 0, (size_t)e->padded * sizeof(float));
    for (int64_t column = 0; column < e->width; column++) {
        const float value = (float)sum[column];
        for (int64_t row = column - column % LANES; row < e->padded; row += LANES, entry += LANES)
            STORE(product + row, LOAD(product + row) + value * LOAD(entry));
    }
    for (int64_t row = 0; row < e->width; row++) variance += (double)product[row] * product[row];
    return sqrt(variance);
}

/* The smallest squared distance of an edge in units of its limit; not a number if one of them is not. */
static double NAME(closest)(const Examiner *e, int64_t n_edges, const double *squared, const int64_t *pair) {
    double closest = INFINITY;
    for (int64_t edge = 0; edge < n_edges; edge++) {
        const double ratio = squared[edge] / e->limits[pair[edge]];
        if (ratio < closest || isnan(ratio)) closest = ratio;
    }
    return closest;
}

/* Whether an edge is shorter than the first limit (Å) of its pair of elements, or the crowding of an atom exceeds
 * `start`: the sum over its edges of a smooth step from 0 at the third limit to 1 at the second. Edges are sorted by
 * centre. Returns -1 for a pair without limits. */
int NAME(contacts_act)(int64_t n_edges, int64_t n_pairs, const double *squared, const int64_t *pair,
                       const int64_t *centre, const double *limits, double start) {
    double crowding = 0;
    int acts = 0;
    for (int64_t edge = 0; edge < n_edges; edge++) {
        if (pair[edge] < 0 || pair[edge] >= n_pairs) return -1;
        const double *limit = limits + 3 * pair[edge], distance = sqrt(squared[edge]);
        const double t = (limit[2] - distance) / (limit[2] - limit[1]);
        if (edge && centre[edge] != centre[edge - 1]) crowding = 0;
        if (t > 0) crowding += t < 1 ? t * t * t * (10 - 15 * t + 6 * t * t) : 1;
        acts |= distance < limit[0] || crowding > start;
    }
    return acts;
}

/* features [n_frames, n_atoms, width] with the weights of the frames; atomic numbers; squared lengths (Å²) and pairs of
 * elements of the edges. Writes the distance of every atom, σ (eV) and the closest contact. Returns 1 without memory. */
int NAME(examine)(const Examiner *e, int64_t n_frames, int64_t n_atoms, int64_t n_edges, const float *features,
                  const double *weight, const int64_t *number, const double *squared, const int64_t *pair,
                  float *distance, double *deviation, double *contact) {
    const int64_t D = e->width, K = e->components, size = 2 * D + e->padded + n_atoms * (D + 2 * K);
    double *sum = malloc((size_t)size * sizeof(float) + (size_t)n_atoms * sizeof(int32_t));
    if (!sum) return 1;
    float *product = (float *)(sum + D), *average = product + e->padded, *component = average + n_atoms * D;
    float *whitened = component + n_atoms * K;
    int32_t *atom = (int32_t *)(whitened + n_atoms * K);
    memset(sum, 0, (size_t)D * sizeof(double));
    for (int64_t element = -1; element < e->elements; element++) { /* its distances are one product with its matrix */
        const float *mean = e->mean + element * K;
        int64_t n = 0;
        for (int64_t i = 0; i < n_atoms; i++) {
            if (e->row[number[i]] != element) continue;
            float *row = average + n * D;
            for (int64_t frame = 0; frame < n_frames; frame++) {
                const float w = (float)weight[frame], *from = features + (frame * n_atoms + i) * D;
                for (int64_t k = 0; k < D; k++) row[k] = (frame ? row[k] : 0) + w * from[k];
            }
            for (int64_t k = 0; k < D; k++) sum[k] += row[k];
            atom[n++] = (int32_t)i;
        }
        if (n && element >= 0) {
            NAME(product)(n, K, D, average, D, e->projection, NULL, component, K, 0);
            for (int64_t k = 0; k < n * K; k++) component[k] -= mean[k % K];
            NAME(product)(n, K, K, component, K, e->whitening + element * K * K, NULL, whitened, K, 0);
        }
        for (int64_t place = 0; place < n; place++) {
            V squares = {0};
            EACH(k, K) squares += LOAD(whitened + place * K + k) * LOAD(whitened + place * K + k);
            distance[atom[place]] = element < 0 ? INFINITY : sqrtf(NAME(total)(squares));
        }
    }
    *deviation = NAME(deviation)(e, sum, product);
    *contact = sqrt(NAME(closest)(e, n_edges, squared, pair));
    free(sum);
    return 0;
}
