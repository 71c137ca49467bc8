"""What does a call cost beside its device time? Kernels, the host's part, first calls, hardware counters."""
