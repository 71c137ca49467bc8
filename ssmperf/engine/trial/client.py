"""The worker's side of the judge: it sends answers, and gets verdicts."""

from __future__ import annotations

import json
import secrets
import socket
from typing import Any

import torch

from ssmperf.engine.judge.answer import Answer
from ssmperf.engine.judge.verdict import Verdict
from ssmperf.engine.trial.arena import Arena
from ssmperf.engine.trial.question import Question
from ssmperf.errors import JudgeFailed, Unsupported

LONGEST_MESSAGE = 1 << 20
INNER = "inner/"  # before the names of results of the recurrence inside a layer


class RemoteJudge:
    """A judge in a process of its own.

    number: the secret number of the case that is being run, under which the judge enters its verdicts.
    asked: how many verdicts it has entered under this number.
    """

    __slots__ = ("_arena", "_sent", "_socket", "asked", "number")  # no instance may have methods of its own

    def __init__(self, descriptor: int, device: str) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._arena = Arena(device)
        self._sent = ""
        self.number = ""
        self.asked = 0

    def begin(self, number: str) -> None:
        """Begin a case."""
        self.number, self.asked = number, 0

    def close(self) -> None:
        """Close the socket and give the shared memory back."""
        self._socket.close()
        self._arena.close()

    def verdict(self, question: Question, answer: Answer) -> Verdict:
        """Have an answer judged.

        Raises:
            Unsupported: as `Judge.verdict`.
            torch.OutOfMemoryError: the judge's reference does not fit in the device's memory.
            JudgeFailed: the judge could not make it.
        """
        reply = self._ask(question, answer)
        if reply.get("memory") and torch.cuda.is_available():
            torch.cuda.empty_cache()  # the missing memory may be in this process's cache
            reply = self._ask(question, answer)
        if "unsupported" in reply:
            raise Unsupported(reply["unsupported"])
        if reply.get("memory"):
            raise torch.OutOfMemoryError(f"the judge has no room for its reference: {reply['failed']}")
        if "failed" in reply:
            raise JudgeFailed(f"the judge failed: {reply['failed']}", reply.get("traceback"))
        self.asked += reply["counts"]
        return Verdict.from_json(reply["verdict"])

    def _ask(self, question: Question, answer: Answer) -> dict[str, Any]:
        identity = secrets.token_hex(8)
        inner = answer.inner or Answer()
        crossing = {INNER + name: value for name, value in inner.results.items()}
        layout = self._arena.write({**answer.results, **crossing})
        message = {
            "identity": identity,
            "number": self.number,
            "question": question.to_json(),
            "layout": layout,
            "token": self._arena.token,
            "problem": answer.problem,
            "gradient_problem": answer.gradient_problem,
            "inner": None if answer.inner is None else [inner.problem, inner.gradient_problem],
        }
        fresh = [] if self._arena.token == self._sent else [self._arena.descriptor]
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], fresh)
            self._sent = self._arena.token
            while True:
                data = self._socket.recv(LONGEST_MESSAGE)
                if not data:
                    raise JudgeFailed("the judge's process has ended")
                reply: dict[str, Any] = json.loads(data)
                if reply["identity"] == identity:  # not one to an earlier worker
                    return reply
        except OSError as error:
            raise JudgeFailed(f"the judge's process has ended ({error.strerror})") from error
