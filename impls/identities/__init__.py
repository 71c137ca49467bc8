"""Identities between models and recurrences, one file per topic."""
