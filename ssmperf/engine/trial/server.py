"""The judge's process: it answers workers' questions, and tells the driver which verdicts it gave.

A nursery forks it and calls `main` with `device`, `shared` (whether other judges work on it), `threads`,
`plugins`, and two inherited sockets, `workers` and `driver`. Messages are JSON objects, one a datagram.
Tensors come through memory that is shared by descriptor. Plug-ins are loaded only when a case needs a
recurrence, model or definition of theirs.
"""

from __future__ import annotations

import faulthandler
import json
import select
import socket
import sys
from collections import OrderedDict
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.failure import failure_of
from ssmperf.engine.judge.answer import Answer
from ssmperf.engine.processes.heap import give_back
from ssmperf.engine.trial.arena import Mappings
from ssmperf.engine.trial.client import INNER, LONGEST_MESSAGE
from ssmperf.engine.trial.judge import KEPT_SHARE, Judge, Question
from ssmperf.errors import Unsupported

MOST_NUMBERS = 8  # cases whose verdicts are remembered


class Server:
    """Answers questions until the driver closes its socket."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.device = config["device"]
        self.plugins = list(config["plugins"])
        self.workers = socket.socket(fileno=config["workers"])
        self.driver = socket.socket(fileno=config["driver"])
        # where workers share a device, each gets other groups in each round, and needs other references
        kept_share = 0.0 if config["shared"] else KEPT_SHARE
        self.judge = Judge(self.device, self._load, kept_share)
        self.mappings = Mappings(self.device)
        self.entered: OrderedDict[str, list[str]] = OrderedDict()

    def run(self) -> None:
        """Answer whoever asks."""
        poll = select.poll()
        for each in (self.workers, self.driver):
            poll.register(each, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self.workers.fileno() in ready:
                self._answer()
            elif self.driver.fileno() in ready:
                data = self.driver.recv(LONGEST_MESSAGE)
                if not data:
                    return
                number = json.loads(data)["number"]
                self.driver.send(json.dumps({"entered": self.entered.get(number, [])}).encode())

    def _answer(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self.workers, LONGEST_MESSAGE, 1)
        if not data:
            return
        message = json.loads(data)
        for descriptor in descriptors:
            self.mappings.add(message["token"], descriptor)
        reply = self._reply(message)
        give_back(self.device)  # the worker needs it too
        self.workers.send(json.dumps({"identity": message["identity"], **reply}).encode())

    def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
        import torch

        try:
            question = Question.from_json(message["question"])
            answer = self._received(message)
            verdict = self.judge.verdict(question, answer)
        except Unsupported as refusal:
            return {"unsupported": str(refusal)}
        except torch.OutOfMemoryError as error:
            self.judge.forget()
            torch.cuda.empty_cache()
            return {"failed": str(error), "memory": True}
        except Exception as error:  # whatever a case's definition or values raise is that case's failure
            failure = failure_of(error)
            print(f"{message['question']['case']}:\n{failure.traceback}", file=sys.stderr, flush=True)
            return {"failed": failure.reason, "traceback": failure.traceback}
        if question.counts:
            self.entered.setdefault(message["number"], []).append(str(verdict.status))
        while len(self.entered) > MOST_NUMBERS:
            self.entered.popitem(last=False)
        return {"verdict": verdict.to_json()}

    def _received(self, message: dict[str, Any]) -> Answer:
        results = dict(self.mappings.read(message["token"], message["layout"]))
        inside = {name.removeprefix(INNER): x for name, x in results.items() if name.startswith(INNER)}
        results = {name: x for name, x in results.items() if not name.startswith(INNER)}
        inner = None if message["inner"] is None else Answer(inside, *message["inner"])
        return Answer(results, message["problem"], message["gradient_problem"], inner)

    def _load(self) -> None:
        plugins, self.plugins = self.plugins, []
        for plugin in plugins:
            registry.load_plugin(plugin)


def main(config: dict[str, Any]) -> None:
    """Serve until the driver ends."""
    faulthandler.enable()
    import torch

    if config["device"].startswith("cuda"):
        torch.cuda.set_device(config["device"])
    elif config["threads"]:
        torch.set_num_threads(config["threads"])
    registry.models()
    Server(config).run()
