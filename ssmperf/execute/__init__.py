"""Where a case runs: executors, one lane per device, worker processes, and what a worker lends to suites."""
