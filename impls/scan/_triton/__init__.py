"""Kernels of the `triton` backend: arithmetic and carries, the two passes, and their launch."""
