"""`ssmperf.verify`: true for what is right in any form; false for each fault, with its reason; no traces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.quick_processes import command
from torch import Tensor

import ssmperf
from ssmperf.authors.verification.report import Verification
from ssmperf.engine.judge.verdict import Verdict
from ssmperf.suitekit import registry

SMALL = {"T": 21, "B": 2, "C": 3, "device": "cpu"}
DEFINITION = registry.recurrence("scan").definition
kept: dict[str, Any] = {}


def scan(log_a, b, initial_state=None, *, phase=None):
    return DEFINITION(log_a, b, initial_state, phase=phase)


def only_real(log_a, b, initial_state=None):
    return scan(log_a, b, initial_state)


def refuses_complex(log_a, b, initial_state=None, *, phase=None):
    if phase is not None:
        raise ssmperf.Unsupported("no phases yet")
    return scan(log_a, b, initial_state)


def verify(function: Callable[..., Any] | str, **options: Any) -> Verification:
    return ssmperf.verify("scan", function, **{**SMALL, **options})


class Scan(torch.autograd.Function):
    """The scan with a backward pass of its own, which takes no names."""

    @staticmethod
    def forward(ctx, log_a, b, initial_state):
        with torch.enable_grad():
            given = [each.detach().requires_grad_() for each in (log_a, b) if each is not None]
            state = None if initial_state is None else initial_state.detach().requires_grad_()
            results = scan(*given, state)
        ctx.inputs, ctx.results = [*given, state], results
        return tuple(each.detach() for each in results)

    @staticmethod
    def backward(ctx, *gradients):
        wanted = [each for each in ctx.inputs if each is not None]
        if torch.is_grad_enabled():
            raise ssmperf.Unsupported("Scan has no second derivatives")
        found = iter(torch.autograd.grad(ctx.results, wanted, gradients))
        return tuple(None if each is None else next(found) for each in ctx.inputs)


class ScanModule(torch.nn.Module):
    """The scan as a layer is called."""

    def forward(self, log_a, b, initial_state=None):
        return scan(log_a, b, initial_state)


RIGHT: dict[str, tuple[Any, int]] = {  # with the number of verdicts
    "function": (scan, 8),
    "without phases": (only_real, 4),
    "refuses phases": (refuses_complex, 4),
    "lambda with names of its own": (lambda a, x, s=None: scan(a, x, s), 4),
    "lambda without a state": (lambda log_a, b: scan(log_a, b), 2),
    "any operands": (lambda *operands: scan(*operands[:3], phase=(*operands, None, None)[3]), 8),
    "any names": (lambda **operands: scan(**operands), 8),
    "partial": (functools.partial(scan, phase=None), 8),
    "autograd function": (Scan, 4),
    "apply": (Scan.apply, 4),
    "module": (ScanModule(), 4),
    "backend": ("blelloch", 8),
}


@pytest.mark.slow(but=("backend", "partial", "function"))
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_true_in_any_form(name: str) -> None:
    function, count = RIGHT[name]
    report = verify(function)
    assert report, report
    assert len(report.verdicts) == count and len(report.not_covered) == 8 - count
    assert report.reason is None
    assert set(report.errors) == set(report.tolerances) >= {"output", "final_state", "gradient of b"}
    assert all(report.errors[each] <= report.tolerances[each] for each in report.errors)


def test_a_compiled_function_is_judged() -> None:
    report = verify(torch.compile(only_real, backend="eager"), gates="data")
    assert report and len(report.verdicts) == 2


def wrong_state(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None):
    output, state = scan(log_a, b, initial_state)
    return output, state * 1.5


def wrong_gradient(log_a, b, initial_state=None):
    return scan(log_a.detach() + 0.5 * (log_a - log_a.detach()), b, initial_state)


def wrong_from_a_state(log_a, b, initial_state=None):
    return scan(log_a, b, None if initial_state is None else initial_state * 1.01)


def cached(log_a, b, initial_state=None):
    if "cached" not in kept:
        kept["cached"] = scan(log_a, b, initial_state)
    return kept["cached"]


def unwritten(log_a, b, initial_state=None):
    output, state = scan(log_a, b, initial_state)
    rest = torch.empty_like(output[:, -1:])
    return torch.cat([output[:, :-1], rest.to(output)], 1), state


def changes_input(log_a, b, initial_state=None):
    result = scan(log_a, b, initial_state)
    with torch.no_grad():
        b.mul_(2)
    return result


def no_graph(log_a, b, initial_state=None):
    output, state = scan(log_a, b, initial_state)
    return output.detach(), state.detach()


def fails(log_a, b, initial_state=None):
    raise RuntimeError("<no> luck")


WRONG = {
    "final state": (wrong_state, "wrong", "final_state: relative error"),
    "gradient": (wrong_gradient, "wrong", "gradient of log_a"),
    "a state's share": (wrong_from_a_state, "wrong", "from a state"),
    "cached result": (cached, "wrong", "relative error"),
    "unwritten row": (unwritten, "nan", "not finite"),
    "changed input": (changes_input, "wrong", "changed its input b"),
    "no graph": (no_graph, "wrong", "no graph"),
    "not a pair": (lambda log_a, b, initial_state=None: scan(log_a, b)[0], "wrong", "data: "),
    "an exception": (fails, "crash", "RuntimeError: <no> luck at "),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_fault_is_false_and_says_why(name: str) -> None:
    kept.clear()
    function, status, reason = WRONG[name]
    report = verify(function, gates="data")
    assert not report
    assert report.reason is not None and reason in report.reason
    assert status in {str(verdict.status) for verdict in report.verdicts.values()}
    assert status in repr(report) and reason.split(":")[0] in repr(report) and "\n" not in repr(report)
    assert report.reason.split(": ", 1)[1] in str(report)


def test_a_crash_names_the_line_of_its_author() -> None:
    report = verify(fails, gates="data")
    assert report.reason is not None and f"{Path(__file__).name}:" in report.reason
    (verdict, *_) = report.verdicts.values()
    assert "in fails" in verdict.extra["traceback"]


def test_gradients_are_judged_unless_they_are_not_wanted() -> None:
    assert not verify(wrong_gradient, gates="data")
    report = verify(wrong_gradient, gates="data", gradients=False)
    assert report and set(report.errors) == {"output", "final_state"}
    assert verify(wrong_from_a_state, initial_state=False)
    assert not verify(wrong_from_a_state, initial_state=True)


@pytest.mark.slow
def test_what_was_asked_for_must_be_covered() -> None:
    assert verify(only_real)
    asked = verify(only_real, gates=["data", "data_complex"])
    assert not asked and asked.reason is not None
    assert "nothing was judged of data_complex: the function has no parameter for phase" in asked.reason
    assert not verify(only_real, regime=["sigmoid", "phase"])
    assert verify(scan, regime=["sigmoid", "phase"])
    assert not verify(lambda log_a, b: scan(log_a, b), initial_state=True)


def test_declared_refusals_are_not_covered() -> None:
    report = ssmperf.verify("scan", "cuda", **SMALL)
    assert not report and not report.verdicts and "nothing was judged" in str(report.reason)
    assert "not covered" in repr(report)


@pytest.mark.parametrize("dtype", ["bf16", torch.float64])
def test_dtypes_have_short_names_and_those_of_torch(dtype: Any) -> None:
    report = verify(scan, dtype=dtype, gates="data")
    assert report, report
    assert report.case.dtype == ("bfloat16" if dtype == "bf16" else "float64")
    assert report.case.gate_dtype == ("float32" if dtype == "bf16" else "float64")


def test_layouts_and_seeds() -> None:
    strides = []

    def noting(log_a, b, initial_state=None):
        strides.append(b.stride(1))
        kept["b"] = b.detach().clone()
        return scan(log_a, b, initial_state)

    assert verify(noting, gates="data", layout="time_last") and set(strides) == {1}
    first = kept["b"]
    assert verify(noting, gates="data", layout="time_last") and torch.equal(first, kept["b"])
    assert verify(noting, gates="data", layout="time_last", seed=1) and not torch.equal(first, kept["b"])


def test_a_model_has_operands_of_its_own() -> None:
    report = ssmperf.verify("gla", "chunkwise", T=20, B=1, H=1, K=4, V=4, device="cpu")
    assert report and set(report.verdicts) == {"model", "model, from a state"}
    assert report.case.model == "gla" and report.case.shape == {"B": 1, "T": 20, "H": 1, "K": 4, "V": 4}
    assert ssmperf.verify("long_conv", "fft", device="cpu")  # which has no state


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "letter": ({"K": 4}, "unknown size of scan 'K' (known: B, C, T)"),
    "keyword": ({"dtyp": "float32"}, "did you mean dtype?"),
    "size": ({"T": 0}, "at least 1"),
    "size of another type": ({"T": 1.5}, "whole number"),
    "dtype": ({"dtype": "float8"}, "bfloat16"),
    "gate kind": ({"gates": "vector"}, "data_complex"),
    "regime": ({"regime": "wild"}, "sigmoid"),
    "regime without such gates": ({"regime": "phase", "gates": "data"}, "under phase"),
    "state": ({"initial_state": "sometimes"}, "'both'"),
    "device": ({"device": "tpu"}, "auto, cpu, cuda"),
    "seed": ({"seed": -1}, "from 0 to"),
    "function": ({"function": 3}, "got int"),
    "backend": ({"function": "belloch"}, "blelloch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_illegal_arguments_are_refused(name: str) -> None:
    options, text = REFUSED[name]
    with pytest.raises(ssmperf.UsageError) as caught:
        verify(**{"function": scan, **options})
    assert text in str(caught.value)


def test_unknown_names_and_missing_states_are_refused() -> None:
    with pytest.raises(ssmperf.UnknownName, match="scan"):
        ssmperf.verify("scam", scan)
    with pytest.raises(ssmperf.UsageError, match="no state"):
        ssmperf.verify("long_conv", "fft", initial_state=True, device="cpu")


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the caller neither change nor matter, and the function is not registered."""
    monkeypatch.setattr("time.perf_counter", lambda: pytest.fail("something is timed"))
    names = registry.backend_names("scan")
    torch.set_default_dtype(torch.float64)
    try:
        random = torch.get_rng_state()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            report = verify(only_real, gates="data")
            assert not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
        with torch.inference_mode():
            assert verify(only_real, gates="data").errors == report.errors
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert report.errors == verify(only_real, gates="data").errors
    assert torch.equal(random, torch.get_rng_state())
    assert registry.backend_names("scan") == names


def test_the_page_is_escaped() -> None:
    page = verify(fails, gates="data")._repr_html_()
    assert "&lt;no&gt; luck" in page and "<no>" not in page
    assert page.count("<tr>") == 2 and page.count("<table>") == page.count("</table>") == 1


def test_the_worst_error_of_an_object_is_shown_with_its_own_tolerance() -> None:
    nan = float("nan")
    verdicts = {
        "one": Verdict(ssmperf.Status.OK, None, {"output": 0.2, "b": nan}, {"output": 1.0, "b": 1.0}),
        "two": Verdict(ssmperf.Status.OK, None, {"output": 0.1, "b": 0.1}, {"output": 0.2, "b": 0.2}),
    }
    report = Verification("scan", "f", verify(scan, gates="data").case, verdicts)
    assert (report.errors["output"], report.tolerances["output"]) == (0.1, 0.2)
    assert report.errors["b"] != report.errors["b"] and report.tolerances["b"] == 1.0


TEST_FILE = """
import ssmperf, torch

def right(log_a, b, initial_state=None):
    return ssmperf.compute("scan", "sequential", log_a, b, initial_state)

def test_right():
    assert ssmperf.verify("scan", right, T=9, C=2, device="cpu")

def test_wrong():
    def wrong(log_a, b, initial_state=None):
        output, state = right(log_a, b, initial_state)
        return output + 1, state
    assert ssmperf.verify("scan", wrong, T=9, C=2, device="cpu")
"""


@pytest.mark.slow
def test_in_a_test_of_one_s_own_the_assertion_says_why(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(TEST_FILE)
    words = ("-q", "-p", "no:cacheprovider", "-W", "error", tmp_path)
    done = command(*words, folder=tmp_path, program="pytest")
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "<scan/wrong wrong: sigmoid/data: output: relative error" in done.stdout
