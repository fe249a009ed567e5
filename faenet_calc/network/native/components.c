/* Connected components of the edges below a length, and the images that make each of them one piece.
 *
 * Included after fused.c, once per instruction set. A union-find in which every atom knows its image relative to the
 * atom it hangs on: two atoms that are already connected by another image belong to a component that is periodic.
 */

/* The root of an atom's tree; the path is shortened and the atom's image becomes that relative to the root. */
static int64_t NAME(root)(int64_t *above, int64_t (*image)[3], int64_t atom) {
    int64_t root = atom, total[3] = {0};
    for (; above[root] != root; root = above[root])
        for (int k = 0; k < 3; k++) total[k] += image[root][k];
    while (above[atom] != root && atom != root) {
        const int64_t next = above[atom];
        int64_t rest[3];
        for (int k = 0; k < 3; k++) rest[k] = total[k] - image[atom][k], image[atom][k] = total[k], total[k] = rest[k];
        above[atom] = root;
        atom = next;
    }
    return root;
}

/* Edges with squared lengths (Å²) below `limit`, each with its reverse. Writes the component of every atom, the number of
 * one of its atoms, or -1 for periodic components, and its image [n_atoms, 3], with which the component is one piece.
 * Returns the number of atoms in components that are not periodic and have several atoms, or -1 without memory. */
int64_t NAME(components)(int64_t n_atoms, int64_t n_edges, const int64_t *centre, const int64_t *neighbor,
                         const int64_t *shift, const double *squared, double limit, int64_t *component,
                         int64_t *image) {
    int64_t *size = malloc((size_t)n_atoms * sizeof(int64_t)), (*of)[3] = (int64_t (*)[3])image, found = 0;
    if (!size) return -1;
    memset(image, 0, (size_t)n_atoms * 3 * sizeof(int64_t));
    for (int64_t i = 0; i < n_atoms; i++) component[i] = i, size[i] = 1; /* size 0: periodic */
    for (int64_t edge = 0; edge < n_edges; edge++) {
        const int64_t i = centre[edge], j = neighbor[edge], *s = shift + 3 * edge;
        if (i > j || !(squared[edge] < limit)) continue;
        const int64_t one = NAME(root)(component, of, i), other = NAME(root)(component, of, j);
        int64_t gap[3], differs = 0; /* from the image in which j is known to the one that belongs to i */
        for (int k = 0; k < 3; k++) differs |= gap[k] = of[i][k] + s[k] - of[j][k];
        if (one == other) {
            if (differs) size[one] = 0;
            continue;
        }
        component[other] = one;
        for (int k = 0; k < 3; k++) of[other][k] = gap[k];
        size[one] = size[one] && size[other] ? size[one] + size[other] : 0;
    }
    for (int64_t i = 0; i < n_atoms; i++) NAME(root)(component, of, i);
    for (int64_t i = 0; i < n_atoms; i++) {
        const int64_t n = size[component[i]];
        found += n > 1;
        if (n == 0) component[i] = -1, memset(of[i], 0, sizeof of[i]);
    }
    free(size);
    return found;
}
