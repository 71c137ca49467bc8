"""Measuring a call: clocks, sampling, statistics, memory and profiles."""
