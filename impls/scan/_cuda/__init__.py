"""The `cuda` backend: kernels in CUDA C++, their sizes, and their launch."""
