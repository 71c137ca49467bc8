"""Names of signals, for messages."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """Name a signal, for example SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
