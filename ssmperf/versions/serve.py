"""Starts a side of a comparison, by the name that other versions of ssmperf know."""

from ssmperf.comparison.versions.serve import main

if __name__ == "__main__":
    main()
