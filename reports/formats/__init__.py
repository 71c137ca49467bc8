"""Everything that is no page: tables on a terminal, files for other programs, and figures."""
