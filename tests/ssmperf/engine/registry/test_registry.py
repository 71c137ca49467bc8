"""Registration and look-up: an unknown name is answered with similar ones; a name is registered once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.processes.quick_processes import command

import ssmperf
from ssmperf import DuplicateName, PluginError, UnknownName, UsageError
from ssmperf.suitekit import registry

pytestmark = pytest.mark.usefixtures("own_registrations")


def scan(log_a: Any, b: Any, initial_state: Any = None, *, phase: Any = None) -> Any:
    return b, b[:, -1]


class Empty:
    """Nothing that could be registered."""


def test_unknown_names_list_the_known_and_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"did you mean hgrn.*known: .*gateloop.*lcsm:…"):
        registry.model("hgrm")
    with pytest.raises(UnknownName, match="did you mean blelloch"):
        registry.backend("scan", "bleloch")
    with pytest.raises(UnknownName, match="linear_attention"):
        registry.recurrence("linear_atention")
    with pytest.raises(UnknownName, match="model or recurrence"):
        ssmperf.backends("nothing")


def test_a_backend_of_a_model_is_found_through_its_recurrence() -> None:
    assert registry.backend("hgrn", "blelloch") is registry.backend("scan", "blelloch")
    assert registry.recurrence_of("hgrn") == "scan"
    assert registry.recurrence_of("scan") == "scan"


@pytest.mark.parametrize("name", ["blelloch", "triton"])
def test_a_built_in_backend_s_name_is_taken_even_before_its_file_is_imported(name: str) -> None:
    with pytest.raises(DuplicateName, match=f"scan/{name}"):
        ssmperf.backend("scan", name=name)(lambda log_a, b: None)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["linear_attention/logspace", "scan/fla_hgrn"])
def test_a_name_in_a_file_of_several_backends_is_taken_before_its_file_is_imported(
    label: str, tmp_path: Path
) -> None:
    of, name = label.split("/")
    (tmp_path / "registers.py").write_text(
        "import ssmperf, sys\n"
        "assert not [module for module in sys.modules if module.endswith(('.scans', '.peers'))]\n"
        "try:\n"
        f"    ssmperf.backend({of!r}, name={name!r})(lambda **operands: None)\n"
        "except ssmperf.DuplicateName as error:\n"
        f"    assert '{label} is already registered by ssmperf.impls.{of}.' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('registered twice')\n"
    )
    done = command(program=str(tmp_path / "registers.py"))
    assert done.returncode == 0, done.stderr


def test_a_plugin_is_loaded_once_and_its_names_stay_unique(tmp_path: Path) -> None:
    source = (
        "import ssmperf\n@ssmperf.backend('scan', name='brought_by_a_test')\ndef f(log_a, b): return b, b\n"
    )
    (tmp_path / "one.py").write_text(source)
    (tmp_path / "two.py").write_text(source)
    registry.load_plugin(tmp_path / "one.py")
    registry.load_plugin(tmp_path / "one.py")
    assert "brought_by_a_test" in registry.backend_names("hgrn")
    with pytest.raises(DuplicateName, match="brought_by_a_test"):
        registry.load_plugin(tmp_path / "two.py")


def test_a_plugin_imports_what_lies_beside_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))
    (tmp_path / "json.py").write_text("raise AssertionError('in the place of the library')")
    (tmp_path / "usual.py").write_text("import json\nassert json.loads('1') == 1")
    registry.load_plugin(tmp_path / "usual.py")
    assert sys.path == before
    (tmp_path / "kernel_of_a_test.py").write_text("def scan(b):\n    return b, b\n")
    (tmp_path / "adapter.py").write_text("from kernel_of_a_test import scan\nassert scan(1) == (1, 1)")
    registry.load_plugin(tmp_path / "adapter.py")
    assert sys.path == [*before, str(tmp_path)]


def test_a_plugin_that_raises_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(PluginError, match=r"bad\.py: ZeroDivisionError"):
        registry.load_plugin(tmp_path / "bad.py")
    with pytest.raises(PluginError, match="no such file"):
        registry.load_plugin(tmp_path / "none.py")


@pytest.mark.parametrize("ending", ["1 / 0", "raise SystemExit(0)", "raise KeyboardInterrupt", "f.x"])
def test_a_plugin_that_fails_leaves_nothing_and_can_be_loaded_when_mended(
    ending: str, tmp_path: Path
) -> None:
    name = f"mended_{abs(hash(ending))}"
    file = tmp_path / f"{name}.py"
    source = f"import ssmperf\n@ssmperf.backend('scan', name='{name}')\ndef f(log_a, b): ...\n"
    file.write_text(f"{source}ssmperf.models()\n{ending}\n")
    with pytest.raises((PluginError, KeyboardInterrupt)):
        registry.load_plugin(file)
    assert name not in registry.backend_names("scan")
    assert not [module for module in sys.modules if name in module]
    assert str(file) not in registry.plugins()
    assert not registry.is_loading()
    file.write_text(source + f"# mended {ending}, and of another length than before\n")
    registry.load_plugin(file)
    assert name in registry.backend_names("scan")
    assert registry.plugins()[-1] == str(file)
    assert registry.hidden_from_workers("backend", f"scan/{name}") is None


def test_what_only_this_process_registers_is_told_and_shared_by_its_file() -> None:
    @ssmperf.backend("scan", name="confined_to_a_test")
    def hidden_from_workers(log_a, b): ...

    assert __file__ in (registry.hidden_from_workers("backend", "scan/confined_to_a_test") or "")
    registry.load_plugin(__file__)
    assert registry.hidden_from_workers("backend", "scan/confined_to_a_test") is None
    assert __file__ in registry.plugins()


def test_built_in_things_reach_the_workers() -> None:
    for of in registry.recurrences():
        assert registry.hidden_from_workers("recurrence", of) is None
        for entry in registry.backends(of):
            assert registry.hidden_from_workers("backend", f"{of}/{entry.name}") is None
    for name in registry.models():
        assert registry.hidden_from_workers("model", name) is None


@pytest.mark.parametrize("name", ["", "Scan", "a-b", "a b", "1a", "a/b", "x\n", "é", 3])
def test_names_are_lower_snake_case(name: str) -> None:
    with pytest.raises(UsageError, match="snake case"):
        ssmperf.backend("scan", name=name)(lambda log_a, b: None)
    with pytest.raises(UsageError, match="snake case"):
        ssmperf.model(name, recurrence="scan", paper="", gate="data")(type("Layer", (ssmperf.Model,), {}))


@pytest.mark.parametrize(
    "declared",
    [
        {"passes": "forward"},
        {"passes": ("sideways",)},
        {"layouts": ("sideways",)},
        {"dtypes": "float32"},
        {"devices": ("tpu",)},
        {"gates": "data"},
        {"needs": "triton"},
        {"kernels": "scan"},
        {"causal": "sometimes"},
        {"batches": "none"},
        {"sizes": ("C", 64)},
        {"sizes": {"Q": (64,)}},
        {"sizes": {"C": ()}},
        {"sizes": {"C": 64}},
        {"sizes": {"C": range(4)}},
    ],
)
def test_declarations_that_mean_nothing_are_refused(declared: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="'declares'.*" + next(iter(declared))):
        ssmperf.backend("scan", name="declares", **declared)(lambda log_a, b: None)
    assert "declares" not in registry.backend_names("scan")


def test_sizes_that_a_backend_does_not_take_are_refused_with_those_that_it_takes() -> None:
    entry = registry.backend("scan", "sequential")
    for legal, size, message in (
        (range(8, 129, 8), 12, "C = 12 (it takes multiples of 8 up to 128)"),
        (range(1, 5), 5, "C = 5 (it takes 1 to 4)"),
        (range(3, 12, 4), 4, "C = 4 (it takes 3, 7 and so on to 11)"),
        ((64, 128), 65, "C = 65 (it takes 64, 128)"),
    ):
        confined = replace(entry, sizes={"C": legal})
        assert confined.refusal(device="cpu", shape={"B": 1, "C": size}) == message
        assert confined.refusal(device="cpu", shape={"B": 1, "C": legal[-1]}) is None
        assert confined.refusal(device="cpu", shape={"B": 1}) is confined.refusal(device="cpu") is None
        both = replace(confined, lengths=lambda T: "too long" if T > 64 else None)
        assert both.refusal(device="cpu", length=64, shape={"C": size}) == message
        assert both.refusal(device="cpu", length=65, shape={"C": size}) == "too long"


@pytest.mark.parametrize(
    "declared", [{"lengths": 64}, {"error_bound": 1e-3}, {"prepare": "gates"}, {"workspace": 0}]
)
def test_a_declaration_that_must_be_a_function_is_refused_otherwise(declared: dict[str, object]) -> None:
    (name,) = declared
    with pytest.raises(UsageError, match=f"backend 'mine': {name} must be a function"):
        ssmperf.backend("scan", name="mine", **declared)(scan)


def test_what_has_not_the_form_of_its_kind_is_refused_where_it_is_registered() -> None:
    with pytest.raises(UsageError, match="function must be a function, got 3"):
        ssmperf.backend("scan", name="mine")(3)  # type: ignore[type-var]
    as_model = ssmperf.model("mine", recurrence="scan", paper="p", gate="data")
    with pytest.raises(UsageError, match=r"ssmperf\.Model\): must be a class"):
        as_model(scan)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="the class Empty has no method shape_problem"):
        as_model(Empty)
    section = ssmperf.Section(title="t", question="q", columns=())
    with pytest.raises(UsageError, match="suite 'mine': the class Empty has no method cases"):
        ssmperf.suite("mine", section=section)(Empty)
    words = dict.fromkeys(("paper", "place", "statement", "printed", "runs", "scaled", "rule"), "x")
    with pytest.raises(UsageError, match="claim 'gla:mine': the class Empty has no method pieces"):
        ssmperf.claim("gla:mine", **words, budget_s=1)(Empty)


def test_a_task_that_is_none_is_refused() -> None:
    ssmperf.task("mine")(lambda: None)
    with pytest.raises(UsageError, match=r"task mine: mine must return a ssmperf\.Task, got None"):
        registry.task("mine")


@pytest.mark.parametrize(
    ("declared", "function", "why"),
    [
        ({"gates": ("dta",)}, scan, r"unknown gates 'dta' \(valid: data, const,"),
        ({}, lambda a, b: None, "its function takes no log_a; scan gives, by name, log_a, b, initial_state"),
        ({}, lambda log_a, b, size: None, "its function needs size"),
        ({"prepare": lambda gates: None}, scan, "its function takes no log_a"),
    ],
)
def test_a_backend_that_does_not_fit_its_recurrence_is_refused(
    declared: dict[str, Any], function: Any, why: str
) -> None:
    assert "scan" in registry.recurrences()
    with pytest.raises(UsageError, match=f"backend 'mine': {why}"):
        ssmperf.backend("scan", name="mine", **declared)(function)
    ssmperf.backend("scan", name="mine")(lambda **operands: None)


def test_a_model_says_what_it_lacks() -> None:
    as_model = ssmperf.model("mine", recurrence="scan", paper="p", gate="data")
    mine: Any = as_model(type("M", (ssmperf.Model,), {}))({"C": 1})
    for name, arguments in (("operands", 1), ("readout", 2), ("definition", 1)):
        with pytest.raises(NotImplementedError, match=f"the model mine does not define {name}"):
            getattr(mine, name)(*[None] * arguments)


def test_a_gate_that_a_model_s_recurrence_does_not_have_is_refused() -> None:
    assert "scan" in registry.recurrences()
    with pytest.raises(UsageError, match=r"model 'mine': unknown gate 'key' \(valid: data, const,"):
        ssmperf.model("mine", recurrence="scan", paper="p", gate="key")(type("M", (ssmperf.Model,), {}))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("ssmperf.backend('scann', name='mine')(print)", "recurrence or model of backend mine 'scann'"),
        (
            "ssmperf.model('mine', recurrence='scann', paper='', gate='data')"
            "(type('M', (ssmperf.Model,), {}))",
            "recurrence of model mine 'scann'",
        ),
    ],
)
def test_a_plugin_for_what_is_unknown_is_refused(tmp_path: Path, code: str, why: str) -> None:
    (tmp_path / "mine.py").write_text(f"import ssmperf\n{code}\n")
    with pytest.raises(UnknownName, match=f"unknown {why}; did you mean scan"):
        registry.load_plugin(tmp_path / "mine.py")
    (tmp_path / "mine.py").write_text(
        "import ssmperf\nssmperf.backend('gla', name='mine')(lambda **x: None)\n"
    )
    registry.load_plugin(tmp_path / "mine.py")
    assert "mine" in registry.backend_names("gla")


def test_a_needed_package_may_lack_its_parent() -> None:
    entry = ssmperf.Backend("x", "scan", lambda log_a, b: None, needs=("no_such_parent.child",))
    assert "no_such_parent.child" in (entry.missing("cpu") or "")


def test_models_tell_their_paper_and_recurrence() -> None:
    assert len(ssmperf.models()) >= 16
    for entry in ssmperf.models():
        assert entry.paper
        assert entry.recurrence in registry.recurrences()
        assert registry.shapes(entry, "smoke")
