"""The LCSM grid: every code computes its literal definition, and Table 4's parameter counts come out."""

from __future__ import annotations

import itertools

import pytest
import torch

from ssmperf import Shape, UsageError
from ssmperf.suitekit import count_parameters, registry

SIZES = {
    "scan": {"C": 15, "K": 3},
    "selective_scan": {"D": 5, "N": 3},
    "linear_attention": {"H": 1, "K": 3, "V": 5},
}
OSCILLATIONS = (*map(str, range(12)), "0f", "4f", "5f", "ssm")
CODES = [
    f"lcsm:{e}-{o}-{s}-0" for e, o, s in itertools.product("01", OSCILLATIONS, "01")
    if (e, s) == ("1", "1") or o not in ("11", "ssm")
]  # fmt: skip
# rows of Table 4: M parameters of the language model, width inside its GLU (docs/recurrences.md#lcsm-grid)
TABLE_4 = {
    "0-0-0-0": (43.45, 682), "1-0-0-0": (43.45, 682), "0-0-1-0": (43.45, 682), "0-1-0-0": (44.04, 550),
    "1-1-0-0": (44.04, 550), "1-0-1-0": (43.45, 682), "1-0f-1-0": (43.45, 682), "0-1-1-0": (44.04, 550),
    "1-1-1-0": (44.04, 550), "1-2-1-0": (43.45, 554), "1-3-1-0": (43.45, 682), "1-4-1-0": (44.50, 793),
    "1-5-1-0": (44.51, 793), "1-6-1-0": (44.11, 682), "1-7-1-0": (44.04, 550), "1-8-1-0": (43.45, 554),
    "1-9-1-0": (43.46, 682), "1-10-1-0": (43.45, 682), "1-11-1-0": (44.11, 682),
}  # fmt: skip
TABLE_6 = {f"1-1-1-{a}": (46.07, 682) for a in range(8)}
K, D, LAYERS, VOCABULARY = 128, 512, 10, 50265
# gates that are no parameters here, and frozen ones in the published code, which counts them
FROZEN = {"0f": K * D, "10": K * D, "11": 2 * K * D}


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


def millions(code: str, *, hidden: int, **options: int) -> float:
    """Parameters of the paper's network: tied embeddings, and no parameters in a final norm."""
    name = f"lcsm:{code}"
    sizes = {"scan": {"C": K * D, "K": K}, "selective_scan": {"D": D, "N": K}}
    shape = sizes.get(registry.model(name).recurrence, {"H": 1, "K": K, "V": D})
    count = count_parameters(
        name, shape, layers=LAYERS, vocabulary=VOCABULARY, tied=True, final_norm=False,
        options=options, block_options={"hidden": hidden},
    )  # fmt: skip
    return round((count + LAYERS * FROZEN.get(code.split("-")[1], 0)) / 1e6, 2)


def test_table_4_has_nineteen_rows_one_with_a_fixed_oscillation() -> None:
    assert len(TABLE_4) == 19
    assert sum("f" in code for code in TABLE_4) == 1
    assert {f"lcsm:{code}" for code in TABLE_4} <= set(registry.models())


@pytest.mark.parametrize(
    ("code", "printed", "hidden"), [(c, *row) for c, row in {**TABLE_4, **TABLE_6}.items()]
)
def test_parameter_counts_of_the_papers_network(code: str, printed: float, hidden: int) -> None:
    assert millions(code, hidden=hidden) == printed


def test_parameter_count_of_the_ssm_parameterisation_needs_another_rank_than_the_released_code() -> None:
    assert millions("1-ssm-1-0", hidden=682, delta_rank=32) == 43.78
    assert millions("1-ssm-1-0", hidden=682, delta_rank=16) == 43.61


@pytest.mark.parametrize("tau", ["", ":2", ":1000"])
@pytest.mark.parametrize("o", ["0", "0f", "4", "4f", "5", "5f"])
@pytest.mark.parametrize(("e", "s"), [("1", "1"), ("0", "1")])
def test_a_data_independent_oscillation_starts_as_alibi_slopes(e: str, o: str, s: str, tau: str) -> None:
    name = f"lcsm:{e}-{o}-{s}-0{tau}"
    k, d = 4, 8
    sizes = {"scan": {"C": k * d, "K": k}, "selective_scan": {"D": d, "N": k}}
    recurrence = registry.model(name).recurrence
    layer = build(name, **sizes.get(recurrence, {"H": 1, "K": k, "V": d}))
    operands = layer.operands(torch.randn(1, 2, d, dtype=torch.float64))
    count = {"0": k * d, "4": k, "5": d}[o[0]]
    slopes = torch.tensor([2 ** (-8 * h / count) for h in range(1, count + 1)], dtype=torch.float64)
    slopes = slopes.view({"0": (k, d), "4": (k, 1), "5": (1, d)}[o[0]]).expand(k, d)
    if recurrence == "selective_scan":
        got = operands["A"].mT
    elif recurrence == "scan":
        got = operands["log_a"][0, 0].view(k, d)
    else:
        got = operands["log_a"].view(k, 1) if o[0] == "4" else operands["log_b"][0, 0]
    torch.testing.assert_close(got.expand(k, d), -slopes, rtol=1e-5, atol=0)
    learned = [part for part in (layer.matrix, layer.key_factor, layer.value_factor) if part is not None]
    assert len(learned) == (not o.endswith("f"))


def test_a_fixed_oscillation_survives_a_half_precision_layer() -> None:
    layer = build("lcsm:1-0f-1-0", D=512, N=128).to(torch.bfloat16)
    A = layer.operands(torch.ones(1, 1, 512, dtype=torch.bfloat16))["A"]
    assert A.dtype == torch.float32
    torch.testing.assert_close(A.min().item(), -(2 ** (-8 / 65536)), rtol=1e-6, atol=0)
    assert A.max().item() == -(2.0**-8)


@pytest.mark.parametrize(
    "name",
    [
        "lcsm:2-0-0-0",
        "lcsm:1-12-1-0",
        "lcsm:1-1-1-8",
        "lcsm:0-11-1-0",
        "lcsm:1-ssm-0-0",
        "lcsm:1-1-1-0:0",
        "lcsm:1-3f-1-0",
        "lcsm:1-10f-1-0",
        "lcsm:1-f-1-0",
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
