"""The questions asked of every model and backend, one file a suite."""
