"""Kernels compiled or interpreted on a CPU, and stand-ins for the driver and the clocks of a GPU."""
