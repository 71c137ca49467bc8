"""The judge's process: it answers workers' questions, and tells the driver which verdicts it gave.

A nursery forks it and calls `main` with `device`, `shared` (whether other judges work on it), `threads`,
`ceilings` (those of the device, if they are known), `plugins`, and two inherited sockets, `workers` and
`driver`. Messages are JSON objects, one a datagram. The first one goes to the driver, with the environment:
this process has imported nothing foreign. Tensors come through memory that is shared by descriptor.

A judge with `plugins` loads them before anything else. It serves the cases of one foreign recurrence, model
or definition alone. Any other judge never loads a plug-in.
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
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.engine.trial.arena import Mappings
from ssmperf.engine.trial.client import INNER, LONGEST_MESSAGE
from ssmperf.engine.trial.judge import KEPT_SHARE, Judge
from ssmperf.engine.trial.question import CaseFacts, ForeignQuestion, Question
from ssmperf.errors import Unsupported

MOST_NUMBERS = 8  # cases whose verdicts are remembered


class Server:
    """Answers questions until the driver closes its socket."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.device = config["device"]
        self.workers = socket.socket(fileno=config["workers"])
        self.driver = socket.socket(fileno=config["driver"])
        self.cases: OrderedDict[str, CaseFacts] = OrderedDict()
        # where workers share a device, each gets other groups in each round, and needs other references
        kept_share = 0.0 if config["shared"] else KEPT_SHARE
        self.judge = Judge(self.device, kept_share)
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
                self.driver.send(json.dumps(self._told(json.loads(data))).encode())

    def _told(self, message: dict[str, Any]) -> dict[str, Any]:
        """Note the case that the driver announces, or list the verdicts under a number."""
        number = message["number"]
        if "asked" not in message:
            return {"entered": self.entered.get(number, [])}
        self.cases[number] = CaseFacts.from_json(message["asked"])
        while len(self.cases) > MOST_NUMBERS:
            self.cases.popitem(last=False)
        return {}

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
            question = self.cases[message["number"]].checked(Question.from_json(message["question"]))
            answer = self._received(message)
            verdict = self.judge.verdict(question, answer)
        except ForeignQuestion as error:
            self.entered.setdefault(message["number"], []).append(str(error))
            return {"failed": str(error)}
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
        return {"verdict": verdict.to_json(), "counts": question.counts}

    def _received(self, message: dict[str, Any]) -> Answer:
        results = dict(self.mappings.read(message["token"], message["layout"]))
        inside = {name.removeprefix(INNER): x for name, x in results.items() if name.startswith(INNER)}
        results = {name: x for name, x in results.items() if not name.startswith(INNER)}
        inner = None if message["inner"] is None else Answer(inside, *message["inner"])
        return Answer(results, message["problem"], message["gradient_problem"], inner)


def main(config: dict[str, Any]) -> None:
    """Serve until the driver ends."""
    faulthandler.enable()
    import torch

    if config["device"].startswith("cuda"):
        torch.cuda.set_device(config["device"])
    elif config["threads"]:
        torch.set_num_threads(config["threads"])
    if config["plugins"] is None:
        registry.take_installed(taken=False)
        registry.models()
        environment = described(config["device"], config["ceilings"])
    else:
        environment = {}
        for plugin in config["plugins"]:
            registry.load_plugin(plugin)
        registry.models()
    server = Server(config)
    server.driver.send(json.dumps(environment).encode())
    server.run()


def described(device: str, known: dict[str, Any] | None) -> dict[str, Any]:
    """Describe this process's environment, and measure the ceilings of the device unless they are known."""
    from ssmperf.engine.machine.ceilings import measure_ceilings
    from ssmperf.engine.machine.environment import capture, env_id

    ceilings = Ceilings.from_json(known) if known else measure_ceilings(device)
    give_back(device)
    environment = capture(device, ceilings)
    return {"env_id": env_id(environment), "environment": environment}
