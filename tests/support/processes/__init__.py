"""The command line, workers and scripts, in this process or as forks of one that has imported torch."""
