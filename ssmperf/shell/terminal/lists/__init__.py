"""The lists of `ssmperf list`: what is there, and what is said of one of them?"""
