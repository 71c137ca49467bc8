"""The configurations of a backend: which there are, and how they are drawn and shrunk."""
