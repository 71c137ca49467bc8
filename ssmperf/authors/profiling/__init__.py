"""The cost of a call next to its device time: kernels, the host's part, first calls, hardware counters."""
