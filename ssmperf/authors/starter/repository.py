"""Write a kernel's repository: the plug-in file, its tests, a workflow, a gate and perhaps a package.

The gate is one bash script without parts, which calls the command line and hands on its exit code. It holds
the defaults that depend on git or on the CI; verdicts and texts come from ssmperf.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from ssmperf.authors.starter.contract import contract
from ssmperf.authors.starter.names import check_name
from ssmperf.engine import registry
from ssmperf.errors import UnknownName, UsageError

TEMPLATES = files("ssmperf.authors.starter") / "files"
# A model to measure first, for each recurrence that has a template.
MODELS = {
    "scan": "hgrn",
    "linear_attention": "gla",
    "selective_scan": "mamba",
    "delta_rule": "gated_deltanet",
    "ratio_scan": "rwkv4",
    "long_conv": "s4d_lin",
    "rnn": "gru",
    "softmax_attention": "attention",
}
WITH_TRITON = ("scan",)
# Files that are copied, and where to.
GATE = "ci/gate"
COPIED = {"gpu.yml": ".github/workflows/gpu.yml", "gate": GATE}
NOT_SET = "\ninstall=''"  # the gate's line about what it installs
EXECUTABLE = 0o755
# Sizes that the tests judge: a single step, sizes that no tile divides, and the usual ones.
ODD_SIZES = {"B": 3, "T": 67, "C": 17, "H": 3, "K": 5, "V": 7, "D": 9, "N": 5}
LONG = {"B": 1, "T": 130}
# Triton's interpreter takes about a millisecond per step.
LONG_INTERPRETED = {"B": 1, "T": 33, "C": 130}

TORCH_IMPORTS = """\
import pytest
import ssmperf
import torch

import {{ name }}"""
TRITON_IMPORTS = """\
import os

import pytest
import ssmperf
import torch

if not torch.cuda.is_available():
    # Kernels then run on the CPU, slowly. Triton reads this when it is imported.
    os.environ["TRITON_INTERPRET"] = "1"

import {{ name }}"""


@dataclass(frozen=True, slots=True)
class StarterRepository:
    """Contents of a kernel's repository.

    recurrence: of the kernel. name: of the kernel, its file and its backend.
    triton: whether it is a kernel in Triton rather than torch. package: whether it can be installed.
    """

    recurrence: str
    name: str
    triton: bool = False
    package: bool = False

    def __post_init__(self) -> None:
        """Check the recurrence.

        Raises:
            UnknownName: there is no such recurrence.
            UsageError: it has no template, or none in Triton.
        """
        known = registry.recurrences()
        if self.recurrence not in known:
            if self.recurrence in registry.models():
                lowered = registry.recurrence_of(self.recurrence)
                raise UsageError(
                    f"{self.recurrence} is a model: a kernel computes its recurrence, {lowered}, "
                    f"and serves all models of that (ssmperf new {lowered} {self.name})"
                )
            raise UnknownName("recurrence", self.recurrence, known)
        if self.recurrence not in MODELS:
            raise UsageError(
                f"there is no template for {self.recurrence}, which a plug-in has registered "
                f"(there are: {', '.join(MODELS)})"
            )
        if self.triton and self.recurrence not in WITH_TRITON:
            raise UsageError(
                f"there is no template in Triton for {self.recurrence} (there are: {', '.join(WITH_TRITON)})"
            )

    @property
    def plugin(self) -> str:
        """The kernel's file."""
        return f"{self.name}.py"

    def texts(self, install: str = "") -> dict[str, str]:
        """Make the texts of all files, by path below the repository's folder. install: see `create`."""
        kernel = f"{self.recurrence}{'_triton' * self.triton}.py.txt"
        found = {
            self.plugin: self._filled(kernel, contract=self._docstring()),
            f"test_{self.name}.py": self._filled(
                "test.py.txt",
                imports=self._marked(TRITON_IMPORTS if self.triton else TORCH_IMPORTS),
                sizes=self._sizes(),
            ),
        }
        found |= {path: self._filled(name) for name, path in COPIED.items()}
        found[GATE] = found[GATE].replace(NOT_SET, f"\ninstall={shlex.quote(install)}")
        if self.package:
            needed = ("torch", *(("triton",) if self.triton else ()))
            found["pyproject.toml"] = self._filled(
                "pyproject.toml.txt",
                distribution=self.name.replace("_", "-").strip("-"),
                dependencies=", ".join(f'"{each}"' for each in needed),
            )
        return found

    def next_steps(self, folder: Path) -> str:
        """Explain the use of the files in Markdown, for the terminal or a README."""
        test, model = f"test_{self.name}.py", MODELS[self.recurrence]
        measured = f"--models {model} --backends {self.name}"
        elsewhere = [f"    cd {shlex.quote(str(folder))}"] if folder.resolve() != Path.cwd() else []
        installed = ["Installed by `pip install -e .`, it needs no `--plugin`.", ""] if self.package else []
        return "\n".join([
            f"## {self.name}",
            "",
            f"A backend of the recurrence `{self.recurrence}` for ssmperf.",
            "",
            *elsewhere,
            f"    pytest {test}",
            f"    ssmperf run --suite correctness,throughput --plugin {self.plugin} {measured},sequential",
            f"    SSMPERF=ssmperf ci/gate --base HEAD~1 --new HEAD --plugin {self.plugin} -- {measured}",
            "",
            *installed,
            "The first command judges output, final state and all gradients against float64. The second also",
            "times the kernel, beside a loop over time. The third compares two commits, and fails where the",
            "kernel became slower or wrong.",
        ])  # fmt: skip

    def _docstring(self) -> str:
        family = registry.recurrence(self.recurrence).family
        text = (
            f"{self.name} computes the recurrence {self.recurrence} ({family}).\n\n"
            f"This is its contract, as ssmperf {version('ssmperf')} has it.\n\n{contract(self.recurrence)}\n"
        )
        return text.replace("\\", r"\\").replace('"""', r"\"\"\"")

    def _sizes(self) -> str:
        letters = registry.recurrence(self.recurrence).presets["smoke"][0]
        long = LONG_INTERPRETED if self.triton else LONG
        odd = {letter: size for letter, size in ODD_SIZES.items() if letter in letters}
        rows = {"one step": {"T": 1}, "odd sizes": odd, "a longer sequence": long}
        shown = {
            remark: ", ".join(f'"{letter}": {size}' for letter, size in row.items())
            for remark, row in rows.items()
        }
        return "\n".join(f"    {{{row}}},  # {remark}" for remark, row in shown.items())

    def _filled(self, template: str, **values: str) -> str:
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        for mark, value in values.items():
            text = text.replace(f"{{{{ {mark} }}}}", value)
        return self._marked(text)

    def _marked(self, text: str) -> str:
        for mark in ("name", "plugin", "recurrence"):
            text = text.replace(f"{{{{ {mark} }}}}", getattr(self, mark))
        return text


def create(starter: StarterRepository, folder: Path, *, force: bool = False, install: str = "") -> list[Path]:
    """Write a repository's files into a folder, which is made if it is missing.

    Files that already hold the same text are left alone. Before anything is written, all is checked.

    force: overwrite files that hold another text.
    install: what the gate tells pip to install, to have ssmperf; empty for a gate that asks for it.

    Raises:
        UsageError: the name cannot be used, a file exists, or the folder cannot be written.
    """
    check_name(starter.name, folder / starter.plugin)
    texts = starter.texts(install)
    taken = set(_imported_names(texts[starter.plugin]))
    if starter.name in taken:
        raise UsageError(f"the name {starter.name!r} cannot be used: the file imports something as it")
    try:
        different = [path for path in texts if not _holds(folder / path, texts[path])]
        existing = [path for path in different if (folder / path).exists()]
        if existing and not force:
            verb = "exists" if len(existing) == 1 else "exist"
            raise UsageError(
                f"{', '.join(existing)} {verb} in {folder}: --force overwrites, or choose a --dir"
            )
        return list(_write(folder, {path: texts[path] for path in different}))
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or folder}: {error.strerror or error}") from error


def _write(folder: Path, texts: Mapping[str, str]) -> Iterator[Path]:
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            file.chmod(EXECUTABLE)
        yield file


def _holds(file: Path, text: str) -> bool:
    return file.is_file() and file.read_bytes() == text.encode()


def _imported_names(code: str) -> Iterator[str]:
    """List the names that a file's imports bind."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
