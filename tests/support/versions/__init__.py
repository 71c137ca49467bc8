"""Repositories with commits to compare."""
