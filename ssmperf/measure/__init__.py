"""Clocks, sampling, memory, verification."""
