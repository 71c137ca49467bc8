"""Kernels of the `triton` backend: the two passes over tiles of steps, and their launch."""
