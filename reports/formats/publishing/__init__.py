"""What goes into a paper or a pull request: tables and figures."""
