"""One case, judged and timed: from what was asked for to its record on disk."""
