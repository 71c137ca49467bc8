"""The delta rule in CUDA C++ for Hopper; `_triton` has the notation.

`chunks.cu` makes the inverses of all chunks. In `walk.cu` a block takes the chunks of a head in order: a
warpgroup copies ahead, and another has a strip of 64 values of the state in its registers, so that products
of a chunk follow one another without waiting for memory. `gradients.cu` takes chunk after chunk, too, for
all gradients that have no order.
"""
