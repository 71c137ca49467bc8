"""Growth with the length: which lengths are measured, and what passes from one segment to the next."""
