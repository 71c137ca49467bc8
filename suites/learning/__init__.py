"""Learned cases: which networks are trained on which tasks, how, and what they know at longer lengths."""
