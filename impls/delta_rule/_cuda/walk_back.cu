// The walk backwards, a strip of values in a block.
#include "walk_back.cuh"

WALK(cuda_delta_walk_back, 384, false, Narrow)
WALK(cuda_delta_walk_back_ends, 384, true, Narrow)
