"""Running cases: the executor, one lane per device, worker processes, and the context of a suite."""
