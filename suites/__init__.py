"""The questions asked of every model and backend: one file per suite, and files that suites share."""
