"""The kernel of examples/triton_backend.py: on a GPU, or interpreted on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ssmperf
from ssmperf import Unsupported
from ssmperf.suitekit import registry

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXAMPLE = Path(__file__).parents[3] / "examples" / "triton_backend.py"

if reason := registry.backend("scan", "triton").missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture
def function(own_registrations: None) -> Callable[..., Any]:
    registry.load_plugin(EXAMPLE)
    return registry.backend("scan", "my_triton").function


@pytest.mark.slow(but=("float64-{'T': 5, 'C': 131}",))
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [("float32", {"T": 1, "C": 3}), ("float64", {"T": 5, "C": 131}), ("bfloat16", {"T": 6, "C": 2})],
    ids=str,
)
def test_it_is_right(dtype: str, sizes: dict[str, int], function: object) -> None:
    """Also where a second program has few channels left."""
    report = ssmperf.verify("scan", "my_triton", dtype=dtype, gates=["data", "const"], **sizes)
    assert report, report


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["channels_last", "time_last"])
def test_resets_and_other_layouts(layout: str, function: object) -> None:
    choices = {"regime": ["reset", "ones"], "gates": ["data", "const"], "T": 7, "C": 5}
    report = ssmperf.verify("scan", "my_triton", layout=layout, **choices)
    assert report, report


def test_gradients_can_be_differentiated(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    operands = [
        torch.randn(size, dtype=torch.float64, device=DEVICE) for size in ((1, 3, 2), (1, 3, 2), (1, 2))
    ]
    operands[0] = -operands[0].abs()
    assert torch.autograd.gradgradcheck(function, [each.requires_grad_() for each in operands])


def test_complex_inputs_are_refused(function: Callable[..., Any]) -> None:
    real = torch.zeros(1, 2, 3, device=DEVICE)
    choices: list[tuple[Tensor, Tensor | None]] = [(real.to(torch.complex64), None), (real, real)]
    for b, phase in choices:
        with pytest.raises(Unsupported, match="complex"):
            function(real, b, phase=phase)


@pytest.mark.parametrize(
    ("line", "instead", "wrong"),
    [
        ("state = a_t * state + ", "state = 0.9 * a_t * state + ", "output"),
        ("return grad_b * previous_h,", "return grad_b * h,", "log_a"),
        ("a[:, 1:], (0, 0, 0, 1)", "a[:, :-1], (0, 0, 0, 1)", "gradient of b"),
    ],
)
@pytest.mark.usefixtures("own_registrations")
def test_a_fault_is_found(line: str, instead: str, wrong: str, tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert text.count(line) == 1
    (tmp_path / "broken.py").write_text(text.replace(line, instead))
    registry.load_plugin(tmp_path / "broken.py")
    report = ssmperf.verify("scan", "my_triton", T=5, C=3, gates="data")
    assert not report
    assert wrong in str(report.reason)
