/* Newton-Schulz iterations of the Muon optimizer (training/orthogonal.py), with the products of fused.c.
 *
 *     x = a x + (b g + c g g) x,  g = x xᵀ
 *
 * The matrices g and g g are symmetric: blocks above the diagonal are copied from those below it.
 */

/* c = a bᵀ of two [n, depth] matrices, symmetric; `packed` is b. */
static void NAME(symmetric_product)(int64_t n, int64_t depth, const float *a, const float *packed, float *c) {
    for (int64_t column = 0; column < n; column += PANEL)
        NAME(product)(n - column, PANEL, depth, a + column * depth, depth, packed + column * depth, NULL,
                      c + column * n + column, n, 0);
    for (int64_t row = 0; row < n; row++)
        for (int64_t column = row - row % PANEL + PANEL; column < n; column++) c[row * n + column] = c[column * n + row];
}

/* A matrix [n, m] and its direction in place of it; work: 2 n m + 3 n n floats. */
static void NAME(newton_schulz)(int64_t n, int64_t m, float *x, float *work, const float *coefficients, int64_t rounds) {
    float *packed = work, *next = work + n * m, *gram = next + n * m, *both = gram + n * n, *packed_gram = both + n * n;
    const float a = coefficients[0], b = coefficients[1], c = coefficients[2];
    for (int64_t round = 0; round < rounds; round++) {
        for (int64_t row = 0; row < n; row++) {
            float *panel = packed + (row - row % PANEL) * m + row % PANEL;
            for (int64_t k = 0; k < m; k++) panel[k * PANEL] = x[row * m + k];
        }
        NAME(symmetric_product)(n, m, x, packed, gram);
        for (int64_t k = 0; k < n; k += PANEL)
            for (int64_t row = 0; row < n; row++)
                memcpy(packed_gram + k * n + row * PANEL, gram + row * n + k, PANEL * sizeof(float));
        NAME(symmetric_product)(n, n, gram, packed_gram, both);
        EACH(k, n * n) STORE(both + k, b * LOAD(gram + k) + c * LOAD(both + k));
        for (int64_t k = 0; k < m; k += PANEL)
            for (int64_t row = 0; row < n; row++)
                memcpy(packed + k * n + row * PANEL, x + row * m + k, PANEL * sizeof(float));
        NAME(product)(n, m, n, both, n, packed, NULL, next, m, 0);
        EACH(k, n * m) STORE(x + k, a * LOAD(x + k) + LOAD(next + k));
    }
}

/* Replaces matrices [rows, columns] by their directions.
 *
 * x is divided by its norm first. A matrix with more rows than columns is transposed for the iterations. `work` has
 * `size` floats for each thread: at least 3 n m + 3 n n for n and m, the smaller and the larger side, padded to panels.
 */
void NAME(orthogonalize)(int64_t count, float *const *matrices, const int64_t *rows, const int64_t *columns,
                         const float *coefficients, int64_t rounds, float *work, int64_t size, int64_t threads) {
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)threads) if (threads > 1)
#endif
    for (int64_t number = 0; number < count; number++) {
#ifdef _OPENMP
        float *own = work + omp_get_thread_num() * size;
#else
        float *own = work;
#endif
        const uint64_t mode = flush_subnormals();
        const int64_t height = rows[number], width = columns[number], tall = height > width;
        const int64_t smaller = tall ? width : height, larger = tall ? height : width;
        const int64_t n = (smaller + PANEL - 1) / PANEL * PANEL, m = (larger + PANEL - 1) / PANEL * PANEL;
        const int64_t row_step = tall ? 1 : width, column_step = tall ? width : 1;
        float *matrix = matrices[number], *x = own;
        double squares = 0;
        for (int64_t k = 0; k < height * width; k++) squares += (double)matrix[k] * matrix[k];
        const float scale = (float)(1.0 / fmax(sqrt(squares), 1e-12));
        memset(x, 0, (size_t)(n * m) * sizeof(float));
        for (int64_t i = 0; i < smaller; i++)
            for (int64_t j = 0; j < larger; j++) x[i * m + j] = scale * matrix[i * row_step + j * column_step];
        NAME(newton_schulz)(n, m, x, own + n * m, coefficients, rounds);
        for (int64_t i = 0; i < smaller; i++)
            for (int64_t j = 0; j < larger; j++) matrix[i * row_step + j * column_step] = x[i * m + j];
        restore_subnormals(mode);
    }
}
