"""What does a network learn? Trainings that follow their seed, many side by side, and tests of the result."""
