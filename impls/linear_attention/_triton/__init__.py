"""Kernels of the `triton` backend, and the host code that launches them.

Words that these files share:

- chunk: C steps whose pairs are products of matrices. block: SUB steps of a chunk, under key gates.
- wide chunk: its decay is too strong for the range of the operands' dtype; its pairs are made in another way.
- walk: one program takes the chunks of a head in order. segment: the stretch of time that it walks.
- strip: the columns of values that a program has of the state. tail: a few columns behind whole strips.
- x, w, y: queries, keys and values of a walk; in reverse the keys, queries and do.
- factors: what key gates make of the state between two chunks' middles; roots of those at a chunk's edges.
- spans: sums of scalar log gates from a chunk's middle; resets, gates of 0, are counted and not summed.
- turned: in the frame in which complex gates are real. J: the derivative of turning.
- through states: the parts of gradients from other chunks. boundary: what a gate's gradient begins with.
- faded: with the decay of scalar or value gates in it.
"""
