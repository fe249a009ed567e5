/* Arguments of training.c: network/training_engine.py declares the same structures. */
#ifndef FAENET_TRAINING_H
#define FAENET_TRAINING_H
#include <stdint.h>

/* Widths; all but `gaussians`, `layers` and `states` are multiples of the panel width, and so is `gaussians`. */
typedef struct {
    int64_t hidden, filters, edge, directional, radial, gaussians, feed_forward, output, layers;
    int64_t first_read; /* first of the states 0 … layers that the output block reads */
    double spacing;     /* of the Gaussians (Å) */
    double message_scale;
} TrainingSizes;

/* Weights, row-major and filled with zeros up to the padded widths, or derivatives with respect to them. */
typedef struct {
    float *direction_weight; /* [3, directional] */
    float *direction_bias;   /* [directional] */
    float *radial_weight;    /* [radial, gaussians] */
    float *radial_bias;      /* [radial] */
    float *edge_weight;      /* [edge, directional + radial] */
    float *edge_bias;        /* [edge] */
    float *filter_weight;    /* [layers, filters, edge] */
    float *node_weight;      /* [layers, 3 filters, hidden]: centre, neighbor, source */
    float *node_bias;        /* [layers, 3 filters] */
    float *up_weight;        /* [layers, hidden, filters] */
    float *up_bias;          /* [layers, hidden] */
    float *in_weight;        /* [layers, feed_forward, hidden] */
    float *in_bias;          /* [layers, feed_forward] */
    float *out_weight;       /* [layers, hidden, feed_forward] */
    float *out_bias;         /* [layers, hidden] */
    float *output_weight;    /* [output, hidden] */
    float *output_bias;      /* [output] */
    float *energy_weight;    /* [output] */
    float *energy_bias;      /* [1] */
    float *mixing;           /* [layers + 1] */
} TrainingWeights;

/* Copies of structures in frames, and where results go. */
typedef struct {
    int64_t n_frames, n_edges, edges_per_group, parts; /* parts: pieces of the batch that threads work on */
    const int64_t *node_start;      /* [n_frames + 1] */
    const int64_t *edge_start;      /* [n_frames + 1] */
    const int64_t *centre;          /* [n_edges] nodes of the same frame */
    const int64_t *neighbor;        /* [n_edges] */
    const float *vectors;           /* [n_edges, 3] in their frames */
    const float *distances;         /* [n_edges] */
    const float *weights;           /* [n_edges] factors of the messages */
    const float *states;            /* [n_nodes, hidden] first states */
    const float *seed;              /* [n_nodes] derivative of the total energy with respect to each node's */
    double *energy;                 /* [n_nodes] */
    float *grad_vectors;            /* [n_edges, 3] of the total energy */
    float *grad_distances;          /* [n_edges] */
    float *grad_weights;            /* [n_edges] */
    const float *grad_energy;       /* [n_nodes] derivatives of the loss with respect to the results above */
    const float *grad_grad_vectors; /* [n_edges, 3] */
    const float *grad_grad_distances; /* [n_edges] */
    const float *grad_grad_weights; /* [n_edges] */
    float *grad_states;             /* [n_nodes, hidden] of the loss */
    float *packed;                  /* packed weights */
    float *kept;                    /* from the first call to the second */
    float *workspace;               /* of the second call */
    int64_t n_gradients;            /* numbers in one set of gradients of the weights */
    TrainingWeights gradients;      /* of the loss, zero before: `parts` sets one after the other in one array */
} TrainingBatch;

#endif
