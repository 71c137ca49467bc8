"""The command line, as `python -m ssmperf.shell.cli`."""

from ssmperf.shell.cli.entry import main

main()
