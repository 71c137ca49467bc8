"""Text output of the command line: progress, tables, and the findings of `list` and `doctor`."""
