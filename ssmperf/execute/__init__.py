"""Running cases in fresh worker processes."""
