"""Kernels of the `triton` backend: what a step needs, the three passes, and their launch."""
