"""What does a kernel's own test suite get? A plug-in for pytest that verifies, times and compares.

pytest loads `hooks` through the entry point `ssmperf` of the group `pytest11` in every session of every
project, so that module imports nothing but pytest. The other modules are imported when they are needed.
"""
