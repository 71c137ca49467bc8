"""Identities between models and recurrences, one file a topic."""
