"""Runs on disk: their records, rounds and scope, which backends compete, and files of other programs."""
