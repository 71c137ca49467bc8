"""What does a network learn? Trainings that follow their seed, many side by side, and tests of the result.

The suite `extrapolation` and the claims train networks with this package, which knows no task or model by
name. The suite says which cases there are; a claim has its variants and the rule of its verdict.
"""
