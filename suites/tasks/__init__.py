"""Synthetic and real tasks to learn: one file per task, which registers itself by `ssmperf.task`."""
