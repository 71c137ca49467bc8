"""How a call differs from a plain one: packed sequences, options, views, which gradients are wanted."""
