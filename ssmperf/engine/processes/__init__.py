"""Processes that are forked from a prepared one, take turns, and leave nothing behind."""
