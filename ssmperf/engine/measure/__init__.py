"""Measuring a call: clocks, sampling, statistics and memory."""
