"""Report formats: pure functions of runs. Frames, tables, figures and a page of HTML."""
