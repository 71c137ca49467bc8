"""How many layers of a model are linear, from its configuration: by a list, or by the rule of its class."""

from __future__ import annotations

from collections.abc import Callable

from ssmperf.engine.plan.workloads.configuration_keys import Keys
from ssmperf.engine.plan.workloads.user_file import shown
from ssmperf.errors import UsageError

MOST_LAYERS = 10_000
LINEAR = ("linear_attention", "mamba", "recurrent")  # names of kinds of layers
SYMBOLS = "M*-E"  # of nemotron_h: Mamba-2, attention, MLP, experts

Layers = Callable[[Keys], tuple[int, int]]  # linear layers, all layers


def total(keys: Keys) -> int:
    """Read the number of all layers. Raises UsageError where it is no such number."""
    number = keys.size("num_hidden_layers")
    if number > MOST_LAYERS:
        raise UsageError(f"{keys.path}: num_hidden_layers must be at most {MOST_LAYERS:,}, got {number:,}")
    return number


def every(keys: Keys) -> tuple[int, int]:
    """Every layer is linear."""
    return total(keys), total(keys)


def listed(keys: Keys) -> tuple[int, int] | None:
    """Count by the list `layer_types`, None where the file has none.

    Raises:
        UsageError: the list's length is not the number of layers.
    """
    kinds = keys.items("layer_types", "layers_block_type")
    if kinds is None:
        return None
    _check_length(keys, "layer_types", len(kinds))
    return sum(kind in LINEAR for kind in kinds), len(kinds)


def by_rule(is_linear: Callable[[Keys, int], bool]) -> Layers:
    """Count by `layer_types`, or where it is absent by a rule on the layer's index, from 0."""

    def count(keys: Keys) -> tuple[int, int]:
        found = listed(keys)
        if found is not None:
            return found
        number = total(keys)
        return keys.ruled("layer_types", sum(is_linear(keys, each) for each in range(number)), number)

    return count


def full_every(key: str) -> Layers:
    """Every n-th layer has full attention, n by a key."""
    return by_rule(lambda keys, layer: (layer + 1) % keys.size(key) != 0)


def kimi(keys: Keys) -> tuple[int, int]:
    """Count by `layer_types`, by the two lists of `linear_attn_config`, or by Kimi Linear's rule."""
    linear = keys.items("linear_attn_config.kda_layers", of=int)
    full = keys.items("linear_attn_config.full_attn_layers", of=int)
    if keys.find("layer_types") is None and linear is not None and full is not None:
        _check_length(keys, "linear_attn_config", len(linear) + len(full))
        return len(linear), len(linear) + len(full)
    return by_rule(lambda keys, layer: layer == 0 or layer % 4 != 0)(keys)


def jamba(keys: Keys) -> tuple[int, int]:
    """One layer per period has attention; the class has no list of kinds."""
    period, number = keys.size("attn_layer_period"), total(keys)
    offset = keys.find("attn_layer_offset")
    offset = keys.default("attn_layer_offset") if offset is None else offset
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < period:
        valid = f"a whole number from 0 to {period - 1}"
        raise UsageError(f"{keys.path}: attn_layer_offset must be {valid}, got {shown(offset)}")
    return sum(layer % period != offset for layer in range(number)), number


def bamba(keys: Keys) -> tuple[int, int]:
    """Layers have attention by their indices."""
    number = total(keys)
    attention = set(keys.items("attn_layer_indices", of=int) or ())
    return number - len(attention & set(range(number))), number


def griffin(keys: Keys) -> tuple[int, int]:
    """A pattern of blocks is repeated over the layers."""
    number = total(keys)
    pattern = keys.items("block_types") or list(keys.default("block_types"))
    return sum(pattern[layer % len(pattern)] in LINEAR for layer in range(number)), number


def lightning(keys: Keys) -> tuple[int, int]:
    """MiniMax's own code lists 0 for lightning and 1 for softmax attention."""
    kinds = keys.items("attn_type_list", of=int)
    if kinds is None:
        raise UsageError(
            f"{keys.path}: attn_type_list is missing, with 0 per lightning layer and 1 per other"
        )
    _check_length(keys, "attn_type_list", len(kinds))
    return kinds.count(0), len(kinds)


def nemotron(keys: Keys) -> tuple[int, int]:
    """Count by a list of kinds or by a pattern such as `M-M*-`; the number of layers is its length."""
    pattern = keys.find("hybrid_override_pattern")
    kinds = keys.items("layer_types", "layers_block_type")
    if kinds is not None:
        return sum(kind in LINEAR for kind in kinds), len(kinds)
    if pattern is None:
        raise UsageError(f"{keys.path}: hybrid_override_pattern is missing, such as 'M-M*-'")
    if not isinstance(pattern, str) or set(pattern) - set(SYMBOLS):
        got = f"hybrid_override_pattern must be a text of {', '.join(SYMBOLS)}, got {shown(pattern)}"
        raise UsageError(f"{keys.path}: {got}")
    return pattern.count("M"), len(pattern)


def rwkv7(keys: Keys) -> tuple[int, int]:
    """Every layer is linear but those that the section `attn` lists."""
    number = total(keys)
    attention = set(keys.items("attn.layers", of=int) or ())
    return number - len(attention & set(range(number))), number


def xlstm(keys: Keys) -> tuple[int, int]:
    """Every layer is linear; published files count them as blocks."""
    number = keys.size("num_hidden_layers", "num_blocks")
    return number, number


def _check_length(keys: Keys, name: str, length: int) -> None:
    number = keys.find("num_hidden_layers")
    if number is not None and total(keys) != length:
        raise UsageError(f"{keys.path}: {name} has {length} layers, num_hidden_layers says {number}")
