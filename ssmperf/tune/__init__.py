"""Choosing kernels' configurations: tables, files, searches, and compilation ahead of a backward pass."""
