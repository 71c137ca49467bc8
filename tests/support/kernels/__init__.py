"""Operands for kernels, and what their results are compared with."""
