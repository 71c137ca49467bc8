"""Execution of a run's cases on the nodes of a Ray cluster."""
