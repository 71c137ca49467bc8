"""Pages in Chromium, driven by its debugging protocol through a pipe."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_S = 60.0  # for a browser that does not answer
PHONE = 600  # pixels: narrower windows are those of phones
KEYS = {"Tab": 9, "ArrowDown": 40}

_START = """import os, sys
for file, place in zip(sys.argv[1:3], (3, 4)):
    os.dup2(int(file), place)
os.execv(sys.argv[3], sys.argv[3:])"""
_LOOK = """(async () => {
  const seen = {};
  const until = async (found) => { while (!found()) await new Promise((go) => setTimeout(go, 20)); };
  const failed = () => [...document.querySelectorAll("#failure:not([hidden])")].map((p) => p.textContent);
  BODY
  return { ...seen, failed: failed() };
})()"""


def browse(file: Path, script: str) -> Any:
    """Open a page, run the body of an async function there when it is loaded, and return its `seen`.

    The body may wait by `await until(() => ...)`. errors: what the page wrote to the console. failed: what
    the page itself says about parts that cannot be read.
    """
    with opened(file) as page:
        return page.look(script)


@contextmanager
def opened(file: Path, *, width: int = 1400, height: int = 3000, fragment: str = "") -> Iterator[Browser]:
    """Open a page in a window of that size, and wait until it is loaded."""
    with _started(file.parent / "profile") as browser:
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            browser.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < PHONE}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.call("Page.navigate", url=file.as_uri() + fragment)
        browser.wait("Page.loadEventFired")
        yield browser


class Browser:
    """Sends commands to a browser, and collects the console output of pages."""

    def __init__(self, reader: int, writer: int) -> None:
        self.session = ""
        self.errors: list[str] = []
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._read = b""
        self._events: list[str] = []

    def look(self, script: str) -> Any:
        """Run the body of an async function in the page, as in `browse`."""
        body = _LOOK.replace("BODY", script)
        found = self.call("Runtime.evaluate", expression=body, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, (found, self.errors)
        return {**found["result"]["value"], "errors": self.errors}

    def press(self, key: str) -> None:
        """Press and release a key, such as `Tab` or `ArrowDown`."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
        raise AssertionError

    def wait(self, event: str) -> None:
        if event not in self._events:
            next(message for message in self._messages() if message.get("method") == event)

    def _messages(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            while b"\0" in self._read:
                line, _, self._read = self._read.partition(b"\0")
                message = json.loads(line)
                self._note(message)
                yield message
            left = deadline - time.monotonic()
            assert select.select([self._reader], [], [], max(0.0, left))[0], f"no answer; {self.errors}"
            read = os.read(self._reader, 1 << 16)
            assert read, f"the browser has ended; {self.errors}"
            self._read += read

    def _note(self, message: dict[str, Any]) -> None:
        method, told = message.get("method", ""), message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"].get("exception", told["exceptionDetails"])))
        elif method == "Log.entryAdded":
            self.errors.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(str(told["args"]))


@contextmanager
def _started(profile: Path) -> Iterator[Browser]:
    """Start Chromium, which reads commands from file 3 and answers on file 4."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               "--remote-debugging-pipe", f"--user-data-dir={profile}",
               "--window-size=1400,3000"]  # fmt: skip
    commands, answers = _pipe(), _pipe()
    start = [sys.executable, "-ISc", _START, str(commands[0]), str(answers[1]), *command]
    process = subprocess.Popen(start, pass_fds=(commands[0], answers[1]), stderr=subprocess.DEVNULL)
    os.close(commands[0])
    os.close(answers[1])
    try:
        yield Browser(answers[0], commands[1])
    finally:
        os.close(commands[1])
        os.close(answers[0])
        try:
            process.wait(PATIENCE_S)  # it ends with its pipe
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pipe() -> tuple[int, int]:
    """Make a pipe whose ends are not files 3 and 4, which the browser needs."""
    ends = os.pipe()
    reader, writer = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return reader, writer
