"""How other people's kernels take this recurrence's operands: one file per package."""
