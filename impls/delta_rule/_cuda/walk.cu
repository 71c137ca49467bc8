// The walk forwards, a strip of values in a block.
#include "walk.cuh"

WALK(cuda_delta_walk, 384, OUTPUT, Narrow)
WALK(cuda_delta_walk_keep, 384, KEEP, Narrow)
WALK(cuda_delta_walk_ends, 384, ENDS, Narrow)
