"""Runs on disk, and the comparison of two runs."""
