// The walk forwards, both strips of a head's values in a block: compiled apart, as few calls need it.
#include "walk.cuh"

WALK(cuda_delta_walk_wide, 512, OUTPUT, Wide)
WALK(cuda_delta_walk_wide_keep, 512, KEEP, Wide)
WALK(cuda_delta_walk_wide_ends, 512, ENDS, Wide)
