"""Growth with the length: the lengths measured, and the state that passes from one segment to the next."""
