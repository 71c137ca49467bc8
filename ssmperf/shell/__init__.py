"""What a person types and sees: the command line, Python's interface, the plug-in of pytest."""
