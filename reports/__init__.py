"""Pure functions of runs: frames, tables, figures, HTML."""
