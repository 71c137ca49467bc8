"""Judging results: oracle, tolerances, verdicts, known answers and properties."""
