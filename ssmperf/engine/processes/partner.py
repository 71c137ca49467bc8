"""Two processes that take turns on one machine: a token goes to and fro between them over a socket.

Only the one that has the token works; the other waits for a message and uses no core. Messages have a fixed
length: their kind, and the number of the pair of tasks to which they belong. A partner that ends its task, or
dies, leaves the other one alone.
"""

from __future__ import annotations

import os
import struct

_TOKEN, _FINISHED, _ENDED = 1, 2, 3
_MESSAGE = struct.Struct("!BQ")
_read, _write = os.read, os.write  # as they are before any backend runs


class Partner:
    """This side's view of its partner, in any of the processes that share this end of the socket.

    descriptor: a connected stream socket.
    pair: the number of the pair of tasks; None while there is no partner to take turns with.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pair: int | None = None
        self._other_finished = False

    def begin(self, pair: int, *, first: bool) -> None:
        """Begin a task; unless this side is first, wait for its turn."""
        self.join(pair)
        if not first:
            self._wait()

    def join(self, pair: int | None) -> None:
        """Go on with a task that another process of this side has begun, and in whose turn it is."""
        self.pair, self._other_finished = pair, False

    def hand_over(self, *, finished: bool) -> bool:
        """Let the partner work, and wait until it is this side's turn again; return whether it did work.

        finished: whether this side has no further turn to take for now. Then the partner keeps the token,
            until it has finished as well and begins something else in turns, or its task has ended.
        """
        if self.pair is None:
            return False
        if self._other_finished:  # it waits until this side goes beyond the end of its turns
            self._other_finished = not finished
            return False
        self._send(_FINISHED if finished else _TOKEN)
        self._wait()
        return True

    def end(self) -> None:
        """End the task, however it went. Any process of this side may do so once no other one works."""
        if self.pair is not None:
            self._send(_ENDED)
            self.pair = None

    def _send(self, kind: int) -> None:
        assert self.pair is not None
        try:
            _write(self.descriptor, _MESSAGE.pack(kind, self.pair))
        except OSError:
            self.pair = None

    def _wait(self) -> None:
        """Wait for the token, or for the partner's end; messages of earlier pairs are dropped."""
        while self.pair is not None:
            message = self._receive()
            if message is None:
                self.pair = None
                return
            kind, pair = _MESSAGE.unpack(message)
            if pair != self.pair:
                continue
            if kind == _ENDED:
                self.pair = None
            self._other_finished = kind == _FINISHED
            return

    def _receive(self) -> bytes | None:
        """Receive a message; None if the partner's processes have all ended."""
        message = b""
        while len(message) < _MESSAGE.size:
            try:
                part = _read(self.descriptor, _MESSAGE.size - len(message))
            except OSError:
                return None
            if not part:
                return None
            message += part
        return message
