/* fused.c, training.c, orthogonal.c, examine.c, components.c and messages.c for portable. */
#define NAME(name) name##_portable
#define LANES 4
#define ROWS 6
#include "fused.c"
#include "training.c"
#include "orthogonal.c"
#include "examine.c"
#include "components.c"
#define REAL float
#include "messages.c"
#undef REAL
#define REAL double
#include "messages.c"
