"""Trainings that are made up: pieces of claims with accuracies, losses and gates as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ssmperf.suites.claims import hgrn2_needle, lcsm_fig4, longhorn_fig4

Numbers = Mapping[str, Mapping[str, Any]]


def made_up(
    variants: Mapping[str, float], T: int, *, spread: float = 0.01, growth: Sequence[int] = (1,), **more: Any
) -> dict[str, Any]:
    """Make up three trainings per variant whose accuracies lie around the given ones."""
    return {
        "trainings": [
            {
                "variant": variant,
                "T": T,
                "smoke": False,
                "seed": seed,
                "status": "ok",
                "reason": "",
                "rate": 1e-3,
                "updates": 100,
                "ended_early": False,
                "chance": 0.05,
                "accuracies": {str(T * factor): accuracy + spread * (seed - 1) for factor in growth},
                "by_reach": {},
                **{name: value(variant, seed) for name, value in more.items()},
            }
            for variant, accuracy in variants.items()
            for seed in range(3)
        ]
    }


def of_gateloop(controlled: float, fixed: float) -> Numbers:
    """Gates at resets are the smaller, the better the data-controlled transitions are."""

    def gates(variant: str, seed: int) -> dict[str, list[float]]:
        return {"at resets": [fixed, 0.01 * seed], "elsewhere": [controlled, 0.01 * seed]}

    accuracies = {"gateloop": controlled, "gateloop_fixed": fixed}
    return {"all": made_up(accuracies, 1024, spread=0.005, gates=gates)}


def of_hgrn2(better: float, worse: float) -> Numbers:
    return {f"T{T}": made_up({"hgrn2": better, "hgrn": worse}, T) for T in (64, 128)}


def of_needle(better: float, worse: float) -> Numbers:
    levels = {"hgrn2": better, "mamba": worse, hgrn2_needle.EQUAL: worse}
    return {"all": made_up(levels, 512, growth=(1, 2, 4))}


def of_lcsm(better: float, worse: float) -> Numbers:
    """The order of the figures for better > worse, and the opposite one otherwise."""
    base = (better + worse) / 2
    step = (better - worse) / 8
    levels = dict.fromkeys((code for group in lcsm_fig4.GROUPS.values() for code in group), base - step)
    levels |= dict.fromkeys(lcsm_fig4.ACTIVATED, base + step)
    levels |= dict.fromkeys((lcsm_fig4.CRAFTED, lcsm_fig4.SSM, lcsm_fig4.HOTTEST), base + step)
    levels[lcsm_fig4.BASE] = base
    levels[lcsm_fig4.COMPLEX] = base + 3 * step
    return {f"T{T}": made_up(levels, T) for T in lcsm_fig4.LENGTHS}


def of_copying(better: float, worse: float) -> Numbers:
    good = dict.fromkeys(("mingru", "minlstm", "mamba"), better)
    return {"all": made_up({**good, "s4d_lin": worse, "lru": worse}, 256, updates=lambda *_: 400_000)}


def of_fig4(better: float, worse: float, T: int = 512) -> Numbers:
    others = dict.fromkeys((*longhorn_fig4.OTHERS, *longhorn_fig4.BESIDE), worse)
    return {f"T{T}": made_up({"longhorn": better, **others}, T)}


def of_fig1(better: float, worse: float) -> Numbers:
    """The loss at 16 T is (2 − accuracy) times that at T."""

    def losses(variant: str, seed: int) -> dict[str, float]:
        rise = 2 - (better if variant == "longhorn" else worse) + 0.01 * (seed - 1)
        return {str(512 * factor): rise if factor == 16 else 1.0 for factor in (1, 2, 4, 8, 16)}

    return {"all": made_up(dict.fromkeys(("longhorn", "attention"), 0.5), 512, losses=losses)}


def of_deltanet(better: float, worse: float) -> Numbers:
    """A loss that rises as much as the first number is above the second."""

    def losses(variant: str, seed: int) -> dict[str, float]:
        rise = 1 + better - worse + 0.01 * (seed - 1)
        return {str(512 * factor): rise if factor == 16 else 1.0 for factor in (1, 2, 4, 8, 16)}

    return {"all": made_up({"deltanet": 0.5}, 512, losses=losses)}


def of_efficiency(better: float, worse: float) -> Numbers:
    """Losses that fall the faster, the higher the accuracy is."""

    def pace(variant: str, seed: int) -> float:
        return (better if variant == "longhorn" else worse) + 0.001 * (seed - 1)

    def curve(variant: str, seed: int) -> list[float]:
        return [3 / (1 + pace(variant, seed) * part) for part in range(32)]

    def losses(variant: str, seed: int) -> dict[str, float]:
        return {"512": 1 - pace(variant, seed)}

    both = dict.fromkeys(("longhorn", "mamba"), 0.5)
    return {"all": made_up(both, 512, loss_curve=curve, losses=losses)}


MADE_UP: dict[str, tuple[Callable[[float, float], Numbers], tuple[float, float]]] = {
    "gateloop:fig6": (of_gateloop, (0.43, 0.25)),
    "hgrn2:fig3": (of_hgrn2, (0.98, 0.4)),
    "hgrn2:needle": (of_needle, (0.98, 0.4)),
    "lcsm:fig4": (of_lcsm, (0.9, 0.1)),
    "linearization:copying": (of_copying, (0.98, 0.4)),
    "longhorn:deltanet_length": (of_deltanet, (1.0, 0.5)),
    "longhorn:fig1": (of_fig1, (1.0, 0.5)),
    "longhorn:fig4": (of_fig4, (0.98, 0.4)),
    "longhorn:sample_efficiency": (of_efficiency, (0.9, 0.5)),
}
