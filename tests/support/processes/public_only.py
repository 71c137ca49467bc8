"""A script: runs the suites of plug-ins that may import the public names of ssmperf and nothing else.

    PYTHONPATH=.:tests python tests/support/processes/public_only.py FILE...

Each file's suite has the name of the file. The result is printed as JSON: per file, its records or an error.
"""

from __future__ import annotations

import builtins
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ssmperf
from ssmperf import authoring, suitekit
from support.processes.in_process import records_of

PLUGIN = "ssmperf_plugin_"  # prefix of the module names of plug-in files
FACADES = {facade.__name__: facade for facade in (ssmperf, authoring, suitekit)}
PUBLIC = {name for facade in FACADES.values() for name in facade.__all__}  # all of them `ssmperf` has, too


def refuse(name: str) -> None:
    raise ImportError(f"{name} is beyond the public names of ssmperf")


def guarded_import(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `__import__`: a plug-in gets public names only."""

    def import_(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if not str((globals or {}).get("__name__")).startswith(PLUGIN):
            return original(name, globals, locals, fromlist, level)
        if name in FACADES:
            for each in fromlist or ():
                if each not in PUBLIC:
                    refuse(f"{name}.{each}")
            return FACADES[name] if fromlist else Public()
        if name.startswith("ssmperf."):
            refuse(name)
        return original(name, globals, locals, fromlist, level)

    return import_


def guarded_import_module(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `importlib.import_module` for calls from a plug-in."""

    def import_module(name: str, package: str | None = None) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if name.startswith("ssmperf.") and caller.startswith(PLUGIN):
            refuse(name)
        return original(name, package)

    return import_module


class Public:
    """Stands for the package in a plug-in that says `import ssmperf`."""

    def __getattr__(self, name: str) -> Any:
        if name not in PUBLIC:
            refuse(f"ssmperf.{name}")
        return getattr(ssmperf, name)


def run(file: Path) -> dict[str, Any]:
    """Run the cases of the plug-in's suite; give their records, or the error with which it failed to load."""
    try:
        records = records_of(
            file.stem,
            file,
            models="hgrn",
            backends="sequential,blelloch",
            preset="smoke",
            axis=["T=16", "C=4", "B=1"],
        )
    except ssmperf.PluginError as error:
        return {"error": str(error)}
    return {"records": [record.to_json() for record in records]}


if __name__ == "__main__":
    builtins.__import__ = guarded_import(builtins.__import__)
    importlib.import_module = guarded_import_module(importlib.import_module)
    print(json.dumps({name: run(Path(name)) for name in sys.argv[1:]}))
