"""The command line, as `python -m ssmperf.cli`."""

from ssmperf.cli.entry import main

main()
