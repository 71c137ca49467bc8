"""Kernels in CUDA C++: compiled by NVRTC at first use, launched through the driver."""
