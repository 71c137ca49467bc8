"""Whole networks of a model's blocks, whose training steps are judged and timed."""
