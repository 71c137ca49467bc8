"""Kernels of the `triton` backend and the autograd function that launches them."""
