"""Processes that are forked from a prepared one, and the end of whatever they leave behind."""
