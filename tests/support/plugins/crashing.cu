// Source of a compiler's error in tests/support/plugins/crashing.py: line 9 uses a name that is not there.
__device__ float other(float x) { return x; }

template <int N>
__global__ void __launch_bounds__(128)
first(float* x) {
    for (int i = 0; i < N; ++i)
        if (i < N - other(1))
            x[i] = missing;
}
