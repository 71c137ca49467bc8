"""The `cuda` backend: kernels in CUDA C++, their sizes, compilation and cache, and their launch."""
