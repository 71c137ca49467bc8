"""GateLoop, section 3.3 and Fig. 3: attention needs products of gates, which leave the range of floats."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ssmperf import Unsupported, compute
from ssmperf.suitekit import ClaimSetting, Estimate, Finding, agree_on_number, agree_on_order, claim

from . import _papers as papers
from ._pieces import of_pieces

LENGTHS, SMOKE_LENGTHS = (64, 256, 1024), (64,)
# decay over the whole sequence, Σ −log a
SPANS = (10.0, 40.0, 80.0, 86.0, 87.0, 88.0, 88.5, 88.7, 89.0, 90.0, 95.0, 110.0, 200.0, 1000.0, 10000.0)
WIDTH = 4
RIGHT = 1e-3  # largest error of a right answer, relative to the largest number of the float64 one
PRINTED_FORM, RAW = "eqs. 14-21 as printed", "surrogate_raw"
STABLE = ("surrogate", "sequential")


@claim(
    "gateloop:surrogate",
    paper=papers.GATELOOP,
    place="Section 3.3 and Fig. 3",
    statement="As attention, cumulative products of gates leave the range of floats; as a recurrence, gates "
    "do not.",
    printed="no number: the paper says that products underflow. Our own figure: their inverse, by which keys "
    "are divided, overflows float32 first, at a span of 88.7, the log of its largest number",
    runs="attention by eqs. 14-21 as printed, `surrogate_raw`, `surrogate` and `sequential`, float32, "
    "constant gates with a span Σ -log a from 10 to 10,000; right is an error below 0.001 from float64",
    scaled="one head of width 4, T = 64, 256 and 1,024",
    rule="agrees: the largest span at which the printed form is right lies below that of the recurrence, "
    "and our own figure lies between the last right and the first wrong span",
    doubts="Whoever reads the paper's warning as one about small products alone: they become 0 at a span of "
    "103, after their inverse has overflowed",
    budget_s=60,
    has_smoke=True,
)
class Surrogate:
    """One piece per length."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return [f"T{T}" for T in (SMOKE_LENGTHS if setting.smoke else LENGTHS)]

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        T = int(piece.removeprefix("T"))
        forms: dict[str, Callable[..., Tensor]] = {PRINTED_FORM: printed_form}
        forms |= {name: backend(name) for name in (RAW, *STABLE)}
        return {name: turning_point(form, T, setting.device) for name, form in forms.items()}

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        for piece, spans in of_pieces(found, [f"T{T}" for T in LENGTHS]).items():
            ends = {form: _estimate(spans.get(form, {})) for form in (PRINTED_FORM, RAW, *STABLE)}
            for stable in STABLE:
                names = (stable, PRINTED_FORM)
                yield Finding(
                    f"largest span computed right, {piece}",
                    "cumulative products leave the range",
                    {name: ends[name] for name in names},
                    agree_on_order(ends[stable], ends[PRINTED_FORM]),
                    note=f"{max(SPANS):,.0f} is the largest span that was tried",
                )
            for form in (PRINTED_FORM, RAW):
                yield Finding(
                    f"largest span computed right, {piece}, {form}",
                    "",
                    {form: ends[form]},
                    agree_on_number("88.7", ends[form]),
                    decides=form == PRINTED_FORM,
                    note="against our own figure of 88.7"
                    + ("; the backend refuses what lies beyond" if form == RAW else ""),
                )


def turning_point(form: Callable[..., Tensor], T: int, device: str) -> dict[str, float | None]:
    """Find the last span at which a form is right and the first at which it is wrong; None without one."""
    last: float | None = None
    for span in SPANS:
        if not is_right(form, T, span, device):
            return {"right": last, "wrong": span}
        last = span
    return {"right": last, "wrong": None}


def is_right(form: Callable[..., Tensor], T: int, span: float, device: str) -> bool:
    """Compare a form in float32 with the definition in float64."""
    operands, exact = problem(T, span, device)
    try:
        output = form(**{name: each.float() for name, each in operands.items()})
    except Unsupported:
        return False
    error = (output.double() - exact).abs().max() / exact.abs().max()
    return bool(error.isfinite() and error <= RIGHT)


@functools.lru_cache(maxsize=len(SPANS))
def problem(T: int, span: float, device: str) -> tuple[Mapping[str, Tensor], Tensor]:
    """Draw operands in float64, and compute the output by the definition."""
    generator = torch.Generator().manual_seed(0)
    # entries of magnitude 1, so that nothing but the gates comes near the ends of the range
    q, k = (torch.randint(2, (1, T, 1, WIDTH), generator=generator).double() * 2 - 1 for _ in range(2))
    v = torch.randn(1, T, 1, WIDTH, generator=generator, dtype=torch.float64)
    log_a = torch.full((1, T, 1, WIDTH), -span / T, dtype=torch.float64)
    operands = {name: each.to(device) for name, each in {"q": q, "k": k, "v": v, "log_a": log_a}.items()}
    exact, _ = compute("linear_attention", "sequential", **operands)
    return operands, exact


def printed_form(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor) -> Tensor:
    """Compute ((Q ⊙ Π)(K ⊘ Π)ᵀ ⊙ M) V with Π the cumulative products of the gates, T rows at once."""
    product = log_a.exp().cumprod(1)
    query, key, value = (each.transpose(1, 2) for each in (q * product, k / product, v))
    output: Tensor = ((query @ key.mT).tril() @ value).transpose(1, 2)
    return output


def backend(name: str) -> Callable[..., Tensor]:
    """Give a backend's output as a function of the operands."""

    def output(**operands: Tensor) -> Tensor:
        found: Tensor = compute("linear_attention", name, **operands)[0]
        return found

    return output


def _estimate(span: Mapping[str, Any]) -> Estimate | None:
    """Bracket the turning point between the last right span and the first wrong one.

    Without a wrong span, the largest one that was tried is right, which is all that is known.
    """
    right, wrong = span.get("right"), span.get("wrong")
    if right is None:
        return None
    return Estimate.exact(right) if wrong is None else Estimate((right + wrong) / 2, right, wrong)
