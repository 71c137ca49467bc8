"""Choosing the configurations of kernels: tables, files and searches."""
