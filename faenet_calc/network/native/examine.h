/* The examination of a structure: examination.py declares the same structure. */
#ifndef FAENET_EXAMINE_H
#define FAENET_EXAMINE_H
#include <stdint.h>

/* An uncertainty and a domain. */
typedef struct {
    int64_t elements, width, padded, components; /* padded: width in whole vectors; components: in whole panels */
    const int64_t *row;      /* [119] row of each atomic number in mean and whitening, or -1 */
    const float *factor;     /* columns of M, each from the vector of its diagonal to `padded` */
    const float *projection; /* [width, components] in panels */
    const float *mean;       /* [elements, components] */
    const float *whitening;  /* [elements, components, components] in panels */
    const double *limits;    /* [119, 119] (Å²) square of the shortest plausible distance */
} Examiner;

#endif
