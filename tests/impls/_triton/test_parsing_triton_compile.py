"""Threads that compile kernels parse them one at a time."""

from __future__ import annotations

import ast
import threading
import time
from typing import Any

import pytest
import triton
from ssmperf.impls._triton.parsing import parse_in_turn
from triton.runtime.jit import JITCallable


@triton.jit
def nothing(x):
    """Do nothing."""


def test_two_threads_do_not_parse_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, inside, most = ast.parse, [0], [0]

    def slow(source: Any, *rest: Any, **options: Any) -> Any:
        if source != nothing._src:  # pytest parses, too
            return parse(source, *rest, **options)
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return parse(source, *rest, **options)

    parse_in_turn()
    parse_in_turn()
    monkeypatch.setattr(ast, "parse", slow)
    trees: list[Any] = []
    threads = [threading.Thread(target=lambda: trees.append(nothing.parse())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trees) == 4 and all(isinstance(tree, ast.Module) for tree in trees)
    assert most == [1]


def test_it_is_made_to_wait_once() -> None:
    parse_in_turn()
    before = JITCallable.parse
    parse_in_turn()
    assert JITCallable.parse is before
