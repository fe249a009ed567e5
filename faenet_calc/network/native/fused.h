/* Arguments of the fused evaluation of FAENet: packing.py and engine.py declare the same structures. */
#ifndef FAENET_FUSED_H
#define FAENET_FUSED_H
#include <stdint.h>

/* Weights, row-major; every width is a multiple of the panel width, filled with zeros. */
typedef struct {
    int64_t kinds, hidden, filters, edge, directional, feed_forward, output, layers, intervals, power;
    int64_t second_layer;  /* of the edge embedding; without it edge = directional */
    int64_t active_source; /* x = σ(lin_down h), or linear */
    int64_t graph_norm, extra_layer;
    int64_t weighted;      /* outputs are multiplied by head_weight · h + head_bias */
    int64_t first_read;    /* first of the states 0 … layers that the output block reads */
    double cutoff, message_scale, output_bias, head_bias, norm_epsilon;
    const float *atom_states;      /* [kinds, hidden] embedding of each kind of atom */
    const float *kind_factor;      /* [kinds] of the energies of atoms */
    const float *direction_weight; /* [3, directional] */
    const float *direction_bias;   /* [directional] */
    const float *radial;           /* [intervals + 1, 2, edge] value and slope × spacing of the radial part; without a
                                      second layer [layers, intervals + 1, 2, filters] */
    const float *edge_weight;      /* [edge, directional] with a second layer */
    const float *filter_weight;    /* [layers, filters, edge] */
    const float *node_weight;      /* [layers, 3 filters, hidden]: centre, neighbor, source */
    const float *node_bias;        /* [layers, 3 filters] */
    const float *norm_weight;      /* [layers, filters] with graph_norm */
    const float *norm_bias;        /* [layers, filters] */
    const float *norm_mean_scale;  /* [layers, filters] */
    const float *up_weight;        /* [layers, hidden, filters] */
    const float *up_bias;          /* [layers, hidden] */
    const float *extra_weight;     /* [layers, hidden, hidden] with extra_layer */
    const float *extra_bias;       /* [layers, hidden] */
    const float *in_weight;        /* [layers, feed_forward, hidden] */
    const float *in_bias;          /* [layers, feed_forward] */
    const float *out_weight;       /* [layers, hidden, feed_forward] */
    const float *out_bias;         /* [layers, hidden] */
    const float *output_weight;    /* [output, hidden] */
    const float *output_hidden_bias; /* [output] */
    const float *energy_weight;    /* [output] */
    const float *head_weight;      /* [hidden] with weighted */
    const float *mixing;           /* [layers + 1] */
} Weights;

/* A batch of structures with their frames, and where results go. */
typedef struct {
    int64_t n_graphs, n_atoms, n_edges, n_frames, share_inverse, edges_per_group, threads;
    const int64_t *atom_start;    /* [n_graphs + 1] */
    const int64_t *edge_start;    /* [n_graphs + 1] */
    const int64_t *kind;          /* [n_atoms] row of atom_states */
    const int64_t *centre;        /* [n_edges], ascending */
    const int64_t *neighbor;      /* [n_edges] */
    const int64_t *shift;         /* [n_edges, 3] */
    const double *vectors;        /* [n_edges, 3] */
    const int64_t *frame_start;   /* [n_graphs + 1] */
    const double *rotation;       /* [n_frames, 3, 3] */
    const double *seed;           /* [n_frames] derivative of the result with respect to each frame's energy */
    const double *factor;         /* [n_edges] factors of the messages, equal for an edge and its reverse, or NULL for 1 */
    double *energy;               /* [n_frames], zero before */
    double *node_energy;          /* [n_nodes], frame after frame */
    float *hidden;                /* [n_nodes, hidden] final states, or NULL */
    float *features;              /* [n_nodes, layers + 1 - first_read, output] last-layer features, or NULL */
    double *grad_vectors;         /* [n_edges, 3], zero before, or NULL for energies alone */
    double *grad_rotation;        /* [n_frames, 3, 3], zero before; with share_inverse at the first frame of two inverse ones */
    double *grad_factor;          /* [n_edges], zero before, or NULL */
    double *grad_copies;          /* [n_edge_copies, 3] by frame, or NULL; not with share_inverse */
} Batch;

#endif
