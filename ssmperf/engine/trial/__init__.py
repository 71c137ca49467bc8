"""Putting calls on trial: a judge in a process of its own, and answers for every timed call."""
