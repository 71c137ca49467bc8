"""The walk through the chunks of a head, in Triton's interpreter with tiny tiles, against the definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.kernels.attention import DEVICE, C, assert_matches, attention, case, cut_into, gpu, tiny
from support.kernels.table import detached, error, evaluate, oracle
from torch import Tensor

from ssmperf.suitekit import registry


@pytest.fixture
def small_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where heads are walked."""
    cut_into(monkeypatch, walk=16)


@pytest.fixture
def wide_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """In strips of 64 values, beside which a few columns are a tail, as they are in the gradients."""
    cut_into(monkeypatch, walk=64, inner=64)


@tiny
@pytest.mark.parametrize(
    ("kind", "T", "options"),
    [
        *((kind, T, {}) for kind in ("none", "const", "scalar", "key") for T in (1, 2 * C + 3)),
        *((kind, C + 1, {"K": 20, "V": 40}) for kind in ("scalar", "key")),
        *((kind, 2 * C, {"regime": regime}) for kind in ("scalar", "key") for regime in ("reset", "small")),
        ("key", C + 1, {"dtype": "float16", "regime": "retnet"}),
    ],
)
@pytest.mark.usefixtures("small_walk")
def test_a_walk_matches_the_definition(kind: str, T: int, options: dict[str, Any]) -> None:
    assert_matches(case(T=T, kind=kind, **options), options.get("dtype", "float32"))


@pytest.mark.slow(but=("0-scalar", "0-const", "0-key"))
@tiny
@pytest.mark.parametrize("kind", ["const", "scalar", "key", "const_complex", "key_complex"])
@pytest.mark.parametrize("walk", [0, 16])
def test_small_gates_leave_half_precision_s_adjoints_their_digits(
    kind: str, walk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that reaches the initial state's gradient has decayed through the first step."""
    cut_into(monkeypatch, walk=walk)
    operands = case(T=2 * C + 3, kind=kind, dtype="float16", regime="small")
    got, expected = evaluate(attention, operands), oracle("linear_attention", operands)
    assert error(got.gradients["initial_state"], expected.gradients["initial_state"]) < 1e-3


ODD = [
    *((kind, 2 * C + 3, {"V": 33, "dtype": "float16", "regime": "gla"}) for kind in ("none", "const", "key")),
    *(("scalar", T, {"V": 65, "dtype": "float16", "regime": "gla"}) for T in (1, C + 1)),
    ("scalar", 2 * C, {"V": 33, "dtype": "float16", "regime": "reset"}),
]


@tiny
@pytest.mark.parametrize(("kind", "T", "options"), ODD)
@pytest.mark.usefixtures("small_walk")
def test_odd_widths_of_half_precision(kind: str, T: int, options: dict[str, Any]) -> None:
    """A column of ones for a normaliser makes the width odd, and rows begin at odd addresses."""
    assert_matches(case(T=T, kind=kind, **options), "float16")


TAILED = [
    *((kind, 2 * C + 3, {"V": 129}) for kind in ("none", "const", "scalar", "key", "key_complex")),
    *((kind, T, {"V": 65, "K": 20}) for kind in ("scalar", "key") for T in (1, C + 1)),
    *((kind, C + 1, {"V": 144, "H": 2}) for kind in ("none", "scalar", "key")),  # 16 columns, without padding
    ("scalar", 2 * C, {"V": 129, "regime": "reset"}),
    ("key", 2 * C, {"V": 129, "regime": "retnet"}),
]


@tiny
@pytest.mark.parametrize(("kind", "T", "options"), TAILED)
@pytest.mark.usefixtures("wide_walk")
def test_a_few_columns_behind_whole_strips(kind: str, T: int, options: dict[str, Any]) -> None:
    assert_matches(case(T=T, kind=kind, dtype="float16", **{"regime": "gla", **options}), "float16")


@tiny
@pytest.mark.parametrize("kind", ["none", "scalar", "key"])
def test_a_few_columns_in_segments(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch, walk=64, inner=64, fill=6)
    assert_matches(case(T=4 * C + 3, kind=kind, V=129, dtype="float16", regime="gla"), "float16")


@tiny
@pytest.mark.usefixtures("wide_walk")
def test_value_gates_take_a_few_columns_as_a_strip() -> None:
    operands = case(T=C + 3, kind="none", V=72)
    gates = torch.linspace(-0.2, 0, (C + 3) * 72).reshape(1, C + 3, 1, 72)
    operands["log_b"] = gates.to(DEVICE).requires_grad_()
    assert_matches(operands)


@tiny
@pytest.mark.parametrize(("K", "V", "width", "tail", "strips"), [
    (128, 129, 64, 16, 2), (128, 144, 64, 16, 2), (64, 65, 64, 16, 1), (128, 145, 64, 0, 3),
    (128, 128, 64, 0, 2), (128, 33, 64, 0, 1), (256, 129, 32, 0, 5),
])  # fmt: skip
def test_where_a_few_columns_are_a_tail(K: int, V: int, width: int, tail: int, strips: int) -> None:
    from ssmperf.impls._triton.plan import Plan, Slot
    from ssmperf.impls.linear_attention._triton import padded, valued, walking

    q, v = (Slot.of(torch.empty(1, 64, 2, size, dtype=torch.bfloat16)) for size in (K, V))
    for kind, expected in ((walking.Walk, tail), (valued.Valued, 0)):
        schedule = kind.of(Plan([q]), q, v, None, pairs=False, width=padded.whole_width(v))
        assert width == schedule.BW
        assert schedule.tail(width) == expected
        assert schedule.strips(width) == (strips if expected == tail else strips + 1)


@tiny
@pytest.mark.parametrize(
    ("K", "gated", "walked"),
    [(128, True, True), (256, True, True), (512, True, False), (512, False, True), (113, True, False)],
)
def test_scalar_gates_are_walked_with_pipelined_loads_alone(K: int, gated: bool, walked: bool) -> None:
    from ssmperf.impls._triton.plan import Plan, Slot
    from ssmperf.impls.linear_attention._triton import walking

    q, v = (Slot.of(torch.empty(1, 64, 2, size, dtype=torch.bfloat16)) for size in (K, 128))
    gates = Slot.of(torch.empty(1, 64, 2, 1)) if gated else None
    assert walking.Walk.of(Plan([q]), q, v, gates, pairs=False).fits == walked


FADING = [
    *((kind, T, 33, False) for kind in ("const", "scalar") for T in (1, C + 1, 3 * C)),
    *((kind, C + 1, V, False) for kind in ("const", "scalar") for V in (65, 129)),
    *(("scalar", 4 * C + 3, V, True) for V in (33, 129)),  # a wide chunk beside such that are not
]


@tiny
@pytest.mark.parametrize(("kind", "T", "V", "reset"), FADING)
def test_odd_widths_bring_scalar_decay_into_values(
    kind: str, T: int, V: int, reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bfloat16 does, which the interpreter lacks: float16 has room for two nats."""
    from ssmperf.impls.linear_attention._triton import schedule

    cut_into(monkeypatch, walk=16 if V < 64 else 64, inner=16 if V < 64 else 64)
    monkeypatch.setitem(schedule.SCALAR_LIMITS, torch.float16, 2.0)
    operands = case(T=T, kind=kind, H=2, V=V, dtype="float16", regime="gla")
    if reset:
        with torch.no_grad():
            operands["log_a"][:, 2 * C + 5] = -math.inf
    assert_matches(operands, "float16")


@tiny
def test_results_of_an_odd_width_do_not_show_that_it_was_padded() -> None:
    operands = case(T=C + 3, kind="scalar", V=33, dtype="float16", regime="gla")
    found = evaluate(attention, operands)
    assert found.output.shape == (1, C + 3, 1, 33)
    assert found.final_state.shape == (1, 1, 16, 33)
    assert found.gradients["v"].shape == operands["v"].shape
    assert found.gradients["initial_state"].shape == operands["initial_state"].shape


@tiny
@pytest.mark.parametrize(("T", "initial"), [(1, False), (C + 3, False), (C + 3, True)])
def test_odd_widths_of_half_precision_by_chunks(
    T: int, initial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch, walk=0)
    operands = case(T=T, kind="scalar", V=33, dtype="float16", regime="gla")
    if not initial:
        del operands["initial_state"]
    assert_matches(operands, "float16")


@tiny
@pytest.mark.parametrize("kind", ["const", "scalar", "key"])
def test_a_walk_in_segments_matches_the_definition(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch, walk=16, fill=3)
    assert_matches(case(T=4 * C + 3, kind=kind))  # of two, two and one chunks


@pytest.mark.slow(but=("scalar-16",))
@tiny
@pytest.mark.parametrize("V", [16, 129])
@pytest.mark.parametrize("kind", ["scalar", "key"])
def test_a_walk_takes_chunks_of_any_decay(kind: str, V: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head has chunks beyond the operands' range beside others, and a reset; the other head has neither."""
    from ssmperf.impls.linear_attention._triton import walking

    cut_into(monkeypatch, walk=min(64, V), inner=min(64, V))
    monkeypatch.setitem(walking.LIMITS, torch.float32, 10.0)
    operands = case(T=4 * C, kind=kind, H=2, V=V)
    gates = operands["log_a"].detach().clone()
    gates[:, :C] *= 0.3
    gates[:, 2 * C : 3 * C] *= 0.3
    gates[:, 3 * C, 0, ...] = -math.inf
    gates[:, :, 1] *= 0.1
    operands["log_a"] = gates.requires_grad_()
    halves = gates.detach().unflatten(1, (-1, C // 2)).sum(2)  # (B, halves, H) or (B, halves, H, K)
    far = (halves.abs() > 10).flatten(3).any(-1) if halves.dim() == 4 else halves.abs() > 10
    assert {bool(each) for each in far[0, :, 0]} == {True, False}
    assert not bool(far[0, :, 1].any())
    assert_matches(operands)
    gradient = evaluate(attention, operands).gradients["log_a"]
    assert bool((gradient[torch.isneginf(operands["log_a"])] == 0).all())


@tiny
@pytest.mark.usefixtures("small_walk")
@pytest.mark.parametrize("gates", ["log_a", "log_b"])
def test_chunks_may_decay_together_by_more_than_float32_holds(
    gates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a chunk of 50 nats is in bfloat16's range; e^-100, between two middles, is 0 in float32."""
    from ssmperf.impls.linear_attention._triton import walking

    monkeypatch.setitem(walking.LIMITS, torch.float32, 60.0)
    operands = case(T=3 * C, kind="key")
    steep = operands.pop("log_a").detach() * 0.1
    steep[:, C // 2 : C + C // 2, :, ::2] = -50 / (C // 2)
    operands[gates] = steep.requires_grad_()
    assert_matches(operands)


@tiny
@pytest.mark.parametrize("bytes_of_device", [49_152, 101_376, 166_912, 232_448])
@pytest.mark.parametrize("K", [16, 64, 128, 256, 512, 1024])
def test_a_walk_fits_the_shared_memory_of_any_device(
    K: int, bytes_of_device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x and w in each stage and y, the state and a scaled y; and where nothing fits, chunks."""
    from ssmperf.impls._triton.plan import Plan, Slot
    from ssmperf.impls.linear_attention._triton import walking

    monkeypatch.setattr(walking, "shared_memory", lambda device: bytes_of_device)
    q = Slot.of(torch.empty(1, 256, 2, K, dtype=torch.bfloat16))
    schedule = walking.Walk.of(Plan([q]), q, q, None, pairs=False)
    (width, stages), chunk = schedule.strip, schedule.tiles.chunk

    def needed(width: int, stages: int) -> int:
        return 2 * (chunk * (2 * K + width) * stages + (K + chunk) * width)

    if width:
        assert needed(width, stages) <= bytes_of_device
    else:
        assert needed(16, 1) + schedule.slack > bytes_of_device
    assert schedule.fits == (width > 0)
    if bytes_of_device == 232_448 and K <= 256:
        assert (width, stages) == (schedule.width(K, schedule.tiles.walk), schedule.tiles.walk_stages)


def on_an_h200(
    monkeypatch: pytest.MonkeyPatch, *, T: int, heads: int, K: int, V: int, gated: bool = False,
    bytes_of_device: int = 232_448,
) -> Any:  # fmt: skip
    """Make the launches of a call as on 132 multiprocessors with so much shared memory."""
    from ssmperf.impls._triton.plan import Plan, Slot
    from ssmperf.impls.linear_attention._triton import walking

    monkeypatch.setattr(walking, "shared_memory", lambda device: bytes_of_device)
    monkeypatch.setattr(walking, "processors", lambda device: 132)
    q, v = (Slot.of(torch.empty(1, T, heads, width, dtype=torch.bfloat16)) for width in (K, V))
    log_a = Slot.of(torch.empty(1, T, heads)) if gated else None
    return walking.Walk.of(Plan([q]), q, v, log_a, pairs=False, width=V + -V % 8)


@tiny
@pytest.mark.parametrize(("K", "V", "heads", "stages"), [
    (128, 128, 66, 3), (128, 128, 67, 2), (128, 129, 66, 3), (128, 129, 67, 2), (256, 256, 256, 3),
])  # fmt: skip
def test_two_programs_share_a_multiprocessor_where_there_are_more_than_those(
    K: int, V: int, heads: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 132 multiprocessors, two strips of 64 values per head; with 256 channels two programs do not fit."""
    assert on_an_h200(monkeypatch, T=64, heads=heads, K=K, V=V).stages == stages


@tiny
@pytest.mark.parametrize(("heads", "T", "width", "segments"), [
    (32, 512, 32, 1), (32, 8192, 32, 1), (33, 640, 32, 1), (34, 640, 64, 1), (64, 512, 64, 1),
    (16, 512, 32, 1), (16, 2048, 64, 4), (8, 512, 32, 1), (8, 2048, 64, 8), (1, 32768, 64, 64),
])  # fmt: skip
def test_strips_are_halved_where_that_is_faster_than_segments(
    heads: int, T: int, width: int, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 132 multiprocessors, two strips of 64 values per head; as measured on an H200."""
    schedule = on_an_h200(monkeypatch, T=T, heads=heads, K=128, V=128)
    assert (schedule.BW, schedule.segments[0]) == (width, segments)


@tiny
@pytest.mark.parametrize(("K", "heads", "gated", "bytes_of_device", "strip"), [
    (256, 64, True, 232_448, (64, 2)), (256, 64, False, 232_448, (32, 3)), (256, 33, True, 232_448, (32, 3)),
    (256, 64, True, 166_912, None), (128, 64, True, 232_448, (64, 3)),
])  # fmt: skip
def test_walks_that_keep_states_of_many_channels_are_wider(
    K: int, heads: int, gated: bool, bytes_of_device: int, strip: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where heads fill 132 multiprocessors with two strips of 64 values each; None: as other walks."""
    schedule = on_an_h200(
        monkeypatch, T=640, heads=heads, K=K, V=128, gated=gated, bytes_of_device=bytes_of_device
    )
    assert schedule.fuller.strip == (strip or schedule.strip)
    assert schedule.fuller.fuller is schedule.fuller


@pytest.mark.slow
@tiny
@pytest.mark.parametrize("keeping", [0, 32])
def test_both_widths_of_strips_that_keep_states_are_right(
    keeping: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch, walk=16, keeping=keeping)
    assert_matches(case(T=3 * C + 5, K=16, V=40, kind="key", dtype="float16"), "float16")


@tiny
@pytest.mark.parametrize("kind", ["scalar", "key"])
@pytest.mark.usefixtures("small_walk")
def test_a_walk_keeps_the_range_of_float16(kind: str) -> None:
    """Values near the largest of the dtype, and gradients near its smallest normal ones."""
    operands = case(T=C + 5, kind=kind, dtype="float16", regime="gla")
    with torch.no_grad():
        operands["log_a"].fill_(-0.3)
        operands["v"][:, ::7] *= 6000
        operands["initial_state"].zero_()
        operands["k"] *= 0.01
    assert_matches(operands, "float16")
    operands = case(T=C + 5, kind=kind, dtype="float16", regime="gla")
    wide = {name: x.detach().double() if isinstance(x, Tensor) else x for name, x in operands.items()}
    with torch.no_grad():
        operands["log_a"].fill_(-0.3)
        wide["log_a"].fill_(-0.3)
    wide["v"].requires_grad_()
    output, expected = attention(**operands)[0], registry.recurrence("linear_attention").definition(**wide)[0]
    small = torch.full_like(output, 2e-4)
    gradient = torch.autograd.grad(output, operands["v"], small)[0]
    reference = torch.autograd.grad(expected, wide["v"], small.double())[0]
    assert (gradient.double() - reference).abs().max() <= 0.01 * reference.abs().max()


@tiny
@pytest.mark.usefixtures("small_walk")
def test_a_walk_repeats_to_the_bit_and_the_past_sees_only_rounding_of_the_future() -> None:
    operands = detached(case(T=C + 9, kind="key"))
    output = attention(**operands)[0]
    assert torch.equal(output, attention(**operands)[0])
    for name in ("q", "k", "v", "log_a"):
        operands[name][:, 21:] *= 3
    torch.testing.assert_close(output[:, :21], attention(**operands)[0][:, :21], rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("kind", ["key", "key_complex"])
def test_chunks_decay_together_by_more_than_float32_holds_on_a_gpu(kind: str) -> None:
    operands = case(T=64 * 5, H=3, K=128, V=128, kind=kind, dtype="bfloat16", regime="gla")
    with torch.no_grad():
        operands["log_a"][:, 64 + 32 : 128 + 32, :, ::8] = -55 / 32
    assert_matches(operands, "bfloat16")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("V", [129, 144])
@pytest.mark.parametrize("kind", ["none", "const", "scalar", "key", "scalar_complex"])
def test_a_few_columns_behind_whole_strips_on_a_gpu(kind: str, V: int, dtype: str) -> None:
    assert_matches(case(T=64 * 5 + 3, H=3, K=128, V=V, kind=kind, dtype=dtype, regime="gla"), dtype)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("K", "V", "H"), [(128, 129, 160), (64, 65, 300)])
@pytest.mark.parametrize("kind", ["none", "scalar", "key"])
def test_a_few_columns_of_many_heads_on_a_gpu(kind: str, K: int, V: int, H: int) -> None:
    """More programs than multiprocessors, which take whole heads, in fewer stages."""
    assert_matches(case(T=64 * 3 + 1, H=H, K=K, V=V, kind=kind, dtype="bfloat16", regime="gla"), "bfloat16")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("kind", ["scalar", "key"])
def test_a_few_columns_after_resets_on_a_gpu(kind: str) -> None:
    operands = case(T=64 * 5, H=3, K=128, V=129, kind=kind, dtype="bfloat16", regime="reset")
    assert_matches(operands, "bfloat16")
