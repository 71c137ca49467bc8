"""The LCSM grid: every code equals its literal definition, and Table 4's parameter counts come out."""

from __future__ import annotations

import itertools

import pytest
import torch

from ssmperf import Shape, UsageError, registry

SIZES = {
    "scan": {"C": 15, "K": 3},
    "selective_scan": {"D": 5, "N": 3},
    "linear_attention": {"H": 1, "K": 3, "V": 5},
}
OSCILLATIONS = (*map(str, range(12)), "ssm")
CODES = [
    f"lcsm:{e}-{o}-{s}-0" for e, o, s in itertools.product("01", OSCILLATIONS, "01")
    if (e, s) == ("1", "1") or o not in ("11", "ssm")
]  # fmt: skip
# M parameters of the language model, width of its GLU: RECURRENCES.md §3.9
TABLE_4 = {
    "0-0-0-0": (43.45, 682), "1-0-0-0": (43.45, 682), "0-0-1-0": (43.45, 682), "0-1-0-0": (44.04, 550),
    "1-1-0-0": (44.04, 550), "0-1-1-0": (44.04, 550), "1-0-1-0": (43.45, 682), "1-1-1-0": (44.04, 550),
    "1-2-1-0": (43.45, 554), "1-3-1-0": (43.45, 682), "1-4-1-0": (44.50, 793), "1-5-1-0": (44.51, 793),
    "1-6-1-0": (44.11, 682), "1-7-1-0": (44.04, 550), "1-8-1-0": (43.45, 554), "1-9-1-0": (43.46, 682),
    "1-10-1-0": (43.45, 682), "1-11-1-0": (44.11, 682),
}  # fmt: skip
TABLE_6 = {f"1-1-1-{a}": (46.07, 682) for a in range(8)}
K, D = 128, 512
ONES = {"10": K * D, "11": 2 * K * D}  # the release counts a gate of ones, which is no parameter here


def build(name: str, **sizes: int) -> torch.nn.Module:
    torch.manual_seed(0)
    entry = registry.model(name)
    return entry.cls(Shape({"B": 2, "T": 7, **(sizes or SIZES[entry.recurrence])})).double()


@pytest.mark.parametrize("name", [*CODES, *(f"lcsm:1-1-1-{a}" for a in range(1, 8)), "lcsm:1-3-1-4:2.5"])
def test_the_lowering_is_the_definition(name: str) -> None:
    layer = build(name)
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    entry = registry.model(name)
    y, state = layer(x)
    torch.testing.assert_close(y, layer.definition(x), rtol=1e-11, atol=1e-12)
    assert state is not None
    operands = {key: value for key, value in layer.operands(x).items() if value is not None}
    assert registry.recurrence(entry.recurrence).gate_kind(operands) == entry.gate


@pytest.mark.parametrize("name", ["lcsm:1-1-1-0", "lcsm:1-6-1-0", "lcsm:0-9-1-0"])
def test_tau_is_the_temperature_of_the_gate(name: str) -> None:
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    default, same, other = (build(name + suffix)(x)[0] for suffix in ("", ":16", ":2"))
    torch.testing.assert_close(default, same)
    assert (default - other).abs().max() > 1e-3


def language_model(mixer: int, width: int) -> int:
    """10 layers of width 512, tied embeddings of 50,265 words, output projection, three norms and a GLU."""
    return 50265 * D + 10 * (mixer + D * D + 6 * D + 3 * D * width)


@pytest.mark.parametrize(
    ("code", "millions", "width"), [(c, *row) for c, row in {**TABLE_4, **TABLE_6}.items()]
)
def test_parameter_counts_of_the_paper(code: str, millions: float, width: int) -> None:
    name = f"lcsm:{code}"
    sizes = {"scan": {"C": K * D, "K": K}, "selective_scan": {"D": D, "N": K}}
    layer = build(name, **sizes.get(registry.model(name).recurrence, {"H": 1, "K": K, "V": D}))
    mixer = sum(parameter.numel() for parameter in layer.parameters()) + ONES.get(code.split("-")[1], 0)
    assert round(language_model(mixer, width) / 1e6, 2) == millions


def test_parameter_count_of_the_ssm_parameterisation() -> None:
    layer = registry.model("lcsm:1-ssm-1-0").cls(Shape(B=1, T=1, D=D, N=K), delta_rank=32)
    mixer = sum(parameter.numel() for parameter in layer.parameters())
    assert round(language_model(mixer, 682) / 1e6, 2) == 43.78


@pytest.mark.parametrize(
    "name",
    [
        "lcsm:2-0-0-0",
        "lcsm:1-12-1-0",
        "lcsm:1-1-1-8",
        "lcsm:0-11-1-0",
        "lcsm:1-ssm-0-0",
        "lcsm:1-1-1-0:0",
        "lcsm:1",
    ],
)
def test_what_is_not_in_the_grid_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="valid: lcsm:e-o-s-a"):
        registry.model(name)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="one head"):
        registry.model("lcsm:1-1-1-0").cls(Shape(B=1, T=1, H=2, K=3, V=4))
    with pytest.raises(UsageError, match="multiple"):
        registry.model("lcsm:0-1-1-0").cls(Shape(B=1, T=1, C=10, K=3))
