"""`ssmperf new`: what it writes works as it is, says the contract, and overwrites nothing."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.commands import repeated
from support.processes.in_process import records_of

import ssmperf
from ssmperf import DuplicateName, Status, UnknownName, UsageError
from ssmperf.authors.starter import repository
from ssmperf.authors.starter.contract import contract
from ssmperf.authors.starter.repository import MODELS, StarterRepository, create
from ssmperf.engine.cases.shape import Shape
from ssmperf.shell import cli
from ssmperf.shell.terminal.lists import listing
from ssmperf.suitekit import registry

# A few steps and channels; other letters keep their small sizes.
SMALL = {"T": 6, "B": 2, "C": 4, "D": 4, "N": 3}


def built_in() -> list[str]:
    """Names of the repository's own recurrences, not those that other tests planted."""
    return [
        name
        for name, entry in registry.recurrences().items()
        if entry.definition.__module__.startswith("ssmperf.")
    ]


def plugin(folder: Path, recurrence: str, name: str = "mine", **choices: bool) -> Path:
    create(StarterRepository(recurrence, name, **choices), folder)
    return folder / f"{name}.py"


def small(recurrence: str) -> dict[str, int]:
    letters = registry.recurrence(recurrence).presets["smoke"][0]
    return {letter: size for letter, size in SMALL.items() if letter in letters}


@pytest.mark.parametrize("recurrence", built_in())
class TestEveryRecurrence:
    @pytest.mark.slow(but=("scan", "long_conv"))
    @pytest.mark.usefixtures("own_registrations")
    def test_the_plugin_is_right_and_listed(self, recurrence: str, tmp_path: Path) -> None:
        registry.load_plugin(plugin(tmp_path, recurrence))
        for dtype in ("float32", "bfloat16"):
            report = ssmperf.verify(recurrence, "mine", dtype=dtype, **small(recurrence))
            assert report, report
        assert ("mine", recurrence) in [
            (each["name"], each["recurrence"]) for each in listing.backends() if each["available"]
        ]
        model = listing.model(MODELS[recurrence])
        assert model["recurrence"] == recurrence
        assert [each["available"] for each in model["backends"] if each["name"] == "mine"] == [True]

    @pytest.mark.slow(but=("scan", "long_conv"))
    @pytest.mark.usefixtures("own_registrations")
    def test_the_plugin_passes_the_suite(self, recurrence: str, tmp_path: Path) -> None:
        file = plugin(tmp_path, recurrence)
        axis = tuple(f"{letter}={size}" for letter, size in small(recurrence).items())
        records = records_of(
            "correctness", file, models=recurrence, backends="mine", axis=axis, regime="reset"
        )
        assert {record.status for record in records} <= {Status.OK, Status.UNSUPPORTED}
        assert sum(record.status is Status.OK for record in records) >= 1

    def test_the_docstring_is_the_contract(self, recurrence: str, tmp_path: Path) -> None:
        entry = registry.recurrence(recurrence)
        tree = ast.parse(plugin(tmp_path, recurrence).read_text())
        docstring = ast.get_docstring(tree) or ""
        assert contract(recurrence) in docstring
        rows = {line.split()[0] for line in docstring.splitlines() if line.startswith("    ")}
        assert rows >= {*entry.tensors, "->"}
        kinds = entry.gate_kinds if len(entry.gate_kinds) > 1 else ()
        assert all(re.search(rf"\b{kind}\b", docstring) for kind in kinds)
        (function,) = (each for each in tree.body if isinstance(each, ast.FunctionDef))
        assert [each.arg for each in (*function.args.args, *function.args.kwonlyargs)] == list(entry.tensors)

    @pytest.mark.usefixtures("own_registrations")
    def test_the_commands_measure_it(self, recurrence: str, tmp_path: Path) -> None:
        """The printed command plans cases of the new backend, none of which it refuses."""
        registry.load_plugin(plugin(tmp_path, recurrence))
        (line,) = re.findall(
            r"^ +(ssmperf run .*)$", StarterRepository(recurrence, "mine").next_steps(Path()), re.MULTILINE
        )
        line = line.replace("correctness,throughput", "throughput")
        cases = [case for case in repeated(line) if case.backend == "mine"]
        assert {case.model for case in cases} == {MODELS[recurrence]}
        kind = registry.model(MODELS[recurrence]).gate
        assert registry.backend(recurrence, "mine").refusal(device="cpu", gate_kind=kind) is None


@pytest.mark.usefixtures("own_registrations")
def test_a_fault_in_the_plugin_is_found(tmp_path: Path) -> None:
    file = plugin(tmp_path, "scan")
    text = file.read_text()
    assert text.count("state = a_t * state + b_t") == 1
    file.write_text(text.replace("a_t * state", "a_t * state.detach()"))
    registry.load_plugin(file)
    report = ssmperf.verify("scan", "mine", T=6)
    assert not report
    assert "gradient" in str(report.reason)


@pytest.mark.usefixtures("own_registrations")
def test_the_contract_follows_the_registry() -> None:
    """That of a recurrence which nobody has described anywhere else."""

    def sample(shape: Shape, *, regime: str, generator: Any, gate_kind: str = "odd") -> dict[str, Any]:
        return {"wave": torch.zeros(shape["B"], shape["T"], shape["C"]), "log_odd": torch.zeros(shape["C"])}

    @ssmperf.recurrence(
        "planted",
        family="F9 planted",
        cost=lambda *given: ssmperf.Cost(1, 1),
        presets={"smoke": [{"B": 2, "C": 4}]},
        operand_shapes={"wave": "B T C", "log_odd": "C", "extra": "3C 2"},
        gates=("log_odd",),
        gate_kinds=("odd", "even"),
        sample=sample,
    )
    def planted(
        wave: torch.Tensor, log_odd: torch.Tensor, extra: torch.Tensor | None = None, speed: float = 0.5
    ) -> tuple[torch.Tensor, None]:
        r"""Give \wave back, with three quotes: '''."""
        return wave[:, :, 0], None

    text = contract("planted")
    assert r"\wave" in text
    rows = dict(re.findall(r"^    (-> \w+|-> final state|\w+)  +(\S.*)$", text, re.MULTILINE))
    assert {name: re.split("  +", row) for name, row in rows.items()} == {
        "wave": ["(B, T, C)", "bfloat16"],
        "log_odd": ["(C,)", "float32"],
        "extra": ["(3C, 2) or None"],
        "speed": ["an option, by default 0.5"],
        "-> output": ["(B, T)", "bfloat16"],
        "-> final state": ["None: there is no state"],
    }
    assert "log_odd: logarithms of gates" in text.replace("\n", " ")
    assert "odd and even" in text.replace("\n", " ")
    assert "decode" not in text
    with pytest.raises(UsageError, match="no template for planted, which a plug-in has registered"):
        StarterRepository("planted", "mine")


def test_a_docstring_keeps_backslashes_and_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = "a \\ and \\n, \"\"\" and '''"
    monkeypatch.setattr(repository, "contract", lambda name: odd)
    text = StarterRepository("scan", "mine").texts()["mine.py"]
    assert odd in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.parametrize("choices", [{}, {"triton": True, "package": True}], ids=["torch", "triton"])
def test_no_mark_is_left(choices: dict[str, bool]) -> None:
    for path, text in StarterRepository("scan", "mine", **choices).texts().items():
        assert re.findall(r"(?<!\$)\{\{.*?\}\}", text) == [], path


def test_the_files_are_in_ruffs_usual_form(tmp_path: Path) -> None:
    ruff = shutil.which("ruff", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert ruff
    starters = [StarterRepository(recurrence, "mine") for recurrence in built_in()]
    starters.append(StarterRepository("scan", "mine", triton=True))
    for number, starter in enumerate(starters):
        create(starter, tmp_path / str(number))
        for check in (["check"], ["format", "--diff"]):
            command = [ruff, *check, "--isolated", "."]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=tmp_path / str(number)
            )
            assert done.returncode == 0, done.stdout + done.stderr


class TestFiles:
    @pytest.fixture(autouse=True)
    def copied(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand in for the gate and the workflow, so that their texts do not matter here."""
        folder = shutil.copytree(
            Path(str(repository.TEMPLATES)), tmp_path_factory.mktemp("templates") / "files"
        )
        (folder / "gate").write_text("#!/bin/sh\necho {{ plugin }}\n")
        (folder / "gpu.yml").write_text("run: ci/gate --plugin {{ plugin }} # {{ name }} ${{ github.sha }}\n")
        monkeypatch.setattr(repository, "TEMPLATES", folder)

    def test_all_are_written(self, tmp_path: Path) -> None:
        written = create(StarterRepository("scan", "mine", package=True), tmp_path / "new" / "folder")
        paths = {str(file.relative_to(tmp_path / "new" / "folder")) for file in written}
        assert paths == {
            "mine.py",
            "test_mine.py",
            "ci/gate",
            ".github/workflows/gpu.yml",
            "pyproject.toml",
        }
        root = tmp_path / "new" / "folder"
        workflow = (root / ".github" / "workflows" / "gpu.yml").read_text()
        assert workflow == "run: ci/gate --plugin mine.py # mine ${{ github.sha }}\n"
        done = subprocess.run([root / "ci" / "gate"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "mine.py\n")

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        """Those that exist are named, and none of the others is written."""
        (tmp_path / "test_mine.py").write_text("precious")
        (tmp_path / "ci").mkdir()
        (tmp_path / "ci" / "gate").write_text("precious")
        with pytest.raises(UsageError, match=r"^test_mine\.py, ci/gate exist in .*--force"):
            create(StarterRepository("scan", "mine"), tmp_path)
        assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == ["gate", "test_mine.py"]
        assert (tmp_path / "test_mine.py").read_text() == "precious"
        create(StarterRepository("scan", "mine"), tmp_path, force=True)
        assert "precious" not in (tmp_path / "test_mine.py").read_text()

    def test_the_same_text_is_left_alone(self, tmp_path: Path) -> None:
        first = create(StarterRepository("scan", "mine"), tmp_path)
        assert len(first) == 4
        assert create(StarterRepository("scan", "mine"), tmp_path) == []
        (tmp_path / "mine.py").write_text("changed")
        with pytest.raises(UsageError, match=r"^mine\.py exists"):
            create(StarterRepository("scan", "mine"), tmp_path)

    @pytest.mark.parametrize("in_the_way", ["a file", "a folder"])
    def test_a_place_that_cannot_be_written(self, tmp_path: Path, in_the_way: str) -> None:
        if in_the_way == "a file":
            (tmp_path / "ci").write_text("")
        else:
            (tmp_path / "mine.py").mkdir()
        with pytest.raises(UsageError):
            create(StarterRepository("scan", "mine"), tmp_path, force=True)


BAD_NAMES = {
    "class": "a keyword of Python",
    "match": "a keyword of Python",
    "My_kernel": "lower snake case",
    "2fast": "lower snake case",
    "my-kernel": "lower snake case",
    "a/b": "lower snake case",
    "": "lower snake case",
    "blelloch": "a backend of that name is registered",
    "triton": "a backend of that name is registered",
    "torch": "would hide a package",
    "json": "would hide a package",
    "zip": "a function of Python",
    "test_mine": "pytest",
    "conftest": "pytest",
    "setup": "setuptools",
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_in_the_way_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"cannot be used: .*{BAD_NAMES[name]}"):
        create(StarterRepository("scan", name), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_the_template_imports_is_refused(tmp_path: Path) -> None:
    create(StarterRepository("scan", "tl"), tmp_path)
    with pytest.raises(UsageError, match="the file imports something as it"):
        create(StarterRepository("scan", "tl", triton=True), tmp_path, force=True)


@pytest.mark.usefixtures("own_registrations")
def test_a_plugin_that_is_loaded_may_be_written_again(tmp_path: Path) -> None:
    registry.load_plugin(plugin(tmp_path, "scan"))
    create(StarterRepository("scan", "mine"), tmp_path, force=True)
    with pytest.raises(UsageError, match="a backend of that name is registered"):
        create(StarterRepository("scan", "mine"), tmp_path / "other")


def test_what_cannot_be_begun() -> None:
    with pytest.raises(
        UnknownName, match=r"unknown recurrence 'scam'; did you mean scan\?.*known: delta_rule"
    ):
        StarterRepository("scam", "mine")
    with pytest.raises(UsageError, match=r"hgrn is a model: .* scan, .*ssmperf new scan mine"):
        StarterRepository("hgrn", "mine")
    with pytest.raises(UsageError, match="no template in Triton for rnn"):
        StarterRepository("rnn", "mine", triton=True)


def test_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["ssmperf", "new", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSMPERF_INSTALL", "../ssmperf")  # wherever these tests run
    code, out, _ = call("scan", "mine", "--dir", "a folder")
    assert code == 0
    assert "wrote a folder/mine.py\nwrote a folder/test_mine.py\n" in out
    commands = [line.strip() for line in out.splitlines() if line.startswith("    ")]
    assert commands[:2] == ["cd 'a folder'", "pytest test_mine.py"]
    assert len(commands) == 4
    code, _, err = call("delta_rule", "mine", "--dir", "a folder")
    assert code == 2
    assert err.startswith("ssmperf: mine.py, test_mine.py") and len(err.splitlines()) == 1
    assert call("delta_rule", "mine", "--dir", "a folder", "--force")[0] == 0
    code, _, err = call("no_such", "mine")
    assert code == 2 and "known: delta_rule, linear_attention" in err


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package's sources."""
    return plugin(tmp_path_factory.mktemp("source"), "scan", "installed_kernel", package=True).parent


@pytest.fixture(scope="module")
def site(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed, which only processes of these tests see."""
    site = tmp_path_factory.mktemp("site")
    copy = shutil.copytree(source, tmp_path_factory.mktemp("build") / "source")  # a build leaves files
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


class TestPackage:
    @pytest.mark.slow
    def test_it_registers_by_itself(self, site: Path, tmp_path: Path) -> None:
        """In a fresh process, and in the workers that such a process starts."""
        found = fresh(
            site,
            "from ssmperf import registry",
            "backend = registry.backend('scan', 'installed_kernel')",
            "print(backend.function.__module__, registry.plugins())",
            "print(registry.hidden_from_workers('backend', 'scan/installed_kernel'))",
            cwd=tmp_path,
        )
        assert found.splitlines() == ["installed_kernel ()", "None"]

    @pytest.mark.slow
    def test_the_same_file_is_no_second_backend(self, site: Path, source: Path, tmp_path: Path) -> None:
        """A gate installs a version, and is given the plug-in of its tree, too. An edited file is another."""
        (tmp_path / "other").mkdir()
        for folder, name in ((tmp_path, "installed_kernel.py"), (tmp_path / "other", "renamed.py")):
            shutil.copy(source / "installed_kernel.py", folder / name)
        edited = tmp_path / "other" / "installed_kernel.py"
        edited.write_text((source / "installed_kernel.py").read_text() + "\n# edited\n")
        found = fresh(
            site,
            "import sys",
            "from ssmperf import DuplicateName, registry",
            "for file in sys.argv[1:]:",
            "    try: registry.load_plugin(file); print('loaded')",
            "    except DuplicateName as error: print(error)",
            arguments=(tmp_path / "installed_kernel.py", edited, tmp_path / "other" / "renamed.py"),
            cwd=tmp_path / "other",
        )
        same, changed, renamed = found.splitlines()
        assert same == "loaded"
        expected = "backend scan/installed_kernel is already registered by installed_kernel.installed_kernel"
        assert changed == renamed == expected
        assert DuplicateName.exit_code == 2


def fresh(site: Path, *lines: str, arguments: tuple[Path, ...] = (), cwd: Path) -> str:
    """The output of a new interpreter that sees the packages of a folder."""
    code = "\n".join((f"import sys; sys.path.insert(0, {str(site)!r})", *lines))
    command = [sys.executable, "-P", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout
