"""The answers of comparisons, histories, claims and workloads in sentences."""
