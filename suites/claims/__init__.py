"""Claims of papers, one per file: the printed result, the measurement, its scaling down, and the rule."""
