"""Helpers of tests: sampled operands, planted and hostile backends, kernels compiled instead of launched."""
