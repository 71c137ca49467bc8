"""What can a user ask for? One function per verb of the command line, without logic of its own."""

from ssmperf.shell.cli.entry import main as main
