"""The delta rule in CUDA C++ for Hopper; `_triton` has the notation.

`chunks.cu` makes the inverses of all chunks. In `walk.cuh` and `walk_back.cuh` a block takes the chunks of a
head in order, or of a segment of it, whose edges `carry.cu` finds: a warpgroup copies ahead, one has a strip
of 64 values of the state in its registers, one finds what that does not wait for. `gradients.cu` takes chunk
after chunk, too, for all gradients that have no order. docs/kernels/delta_rule.md has what was measured.
"""
