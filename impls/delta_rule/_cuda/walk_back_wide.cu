// The walk backwards, both strips of a head's values in a block: compiled apart, as few calls need it.
#include "walk_back.cuh"

WALK(cuda_delta_walk_back_wide, 512, false, WideBack)
WALK(cuda_delta_walk_back_wide_ends, 512, true, WideBack)
