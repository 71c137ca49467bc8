"""Plug-ins of backends that are wrong, harm their process or seem quicker than they are."""
