"""Recurrences, their backends, and the models that lower to them."""
