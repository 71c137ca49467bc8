"""Options of models: each is explained, and a value out of its range is refused before anything is built."""

from __future__ import annotations

import pytest

from ssmperf import UsageError
from ssmperf.engine.registry.options import options_of
from ssmperf.suitekit import registry

OUTSIDE = (
    *(f"{name}:rank={rank}" for name in ("f4_decoupled", "f4_vector", "gla") for rank in (0, -1)),
    *(f"{name}:rank={rank}" for name in ("longhorn", "longhorn_exact", "mamba", "rwkv6") for rank in (0, -1)),
    *(f"{name}:tau={tau}" for name in ("gla", "gsa") for tau in (0.0, -1.0, "nan", "inf")),
    *(f"attention:base={base}" for base in (0.0, -1.0, "nan", "inf")),
    *(f"{name}:lower_bound={bound}" for name in ("hgrn", "hgrn2", "pese_lr") for bound in (-0.5, 1.0, "nan")),
    *(f"lru:min_radius={radius}" for radius in (-0.5, 1.0, 1.5, "nan")),
    *(f"lru:max_radius={radius}" for radius in (0.5, 1.5, "nan")),
    *(f"lru:max_phase={phase}" for phase in (0.0, -1.0, 7.0, "nan")),
    *(f"kda:lower_bound={bound}" for bound in (0.0, 5.0, "nan", "-inf")),
    *(f"{name}:width=0" for name in ("deltanet", "deltaproduct", "kda")),
    *(f"deltaproduct:n_h={n}" for n in (0, -1)),
    *(f"rwkv7:layer={layer}" for layer in (1, -1)),
    *(f"tnn:gamma={gamma}" for gamma in (0.0, -1.0, 1.5, "nan")),
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_value_out_of_range_is_refused_with_what_is_valid(name: str) -> None:
    entry = registry.model(name)
    shape = registry.shapes(entry, "smoke")[0]
    with pytest.raises(UsageError, match=r"must be|min_radius in") as error:
        entry.cls(shape)
    value = name.partition("=")[2]
    assert value in str(error.value).partition("got")[2]
    assert entry.cls.shape_problem(shape) == str(error.value), "a plan knows it"


@pytest.mark.parametrize(
    "name",
    ["gla:rank=1", "gla:tau=0.5", "lru:min_radius=0.0:max_radius=1.0", "tnn:gamma=1.0", "mamba:rank=1"],
)
def test_the_ends_of_a_range_are_valid(name: str) -> None:
    entry = registry.model(name)
    shape = registry.shapes(entry, "smoke")[0]
    assert entry.cls(shape).shape and entry.cls.shape_problem(shape) is None


def test_every_option_of_a_model_is_explained() -> None:
    options = {name: options_of(entry.cls) for name, entry in registry.models().items()}
    mute = [f"{name}:{each}" for name, its in options.items() for each in its if not its[each].help]
    assert not mute
    assert options["gla"]["rank"].help == "of W₁W₂."
    assert options["rwkv6"]["depth"].help == options["rwkv5"]["depth"].help, "a base class has explained it"
    assert options["tnn"]["by_length"].help.endswith("gives another layer."), "more than the first line"
