"""The model and the sizes of a configuration's linear layers, one function per family of names."""

from __future__ import annotations

from ssmperf.engine.plan.workloads.configuration_keys import Keys
from ssmperf.engine.plan.workloads.user_file import whole

Layer = tuple[str, dict[str, int]]  # model and sizes


def gated_deltanet(keys: Keys) -> Layer:
    """Read the gated delta rule of Qwen."""
    sizes = {
        "H": keys.size("linear_num_value_heads"),
        "G": keys.size("linear_num_key_heads"),
        "K": keys.size("linear_key_head_dim"),
        "V": keys.size("linear_value_head_dim"),
    }
    return "gated_deltanet", sizes


def olmo(keys: Keys) -> Layer:
    """Read the gated delta rule of OLMo: heads as in attention, K is 3/4 of an even share, V = 2K."""
    heads = keys.size("linear_num_value_heads", "num_attention_heads")
    key_heads = keys.size("linear_num_key_heads", "num_attention_heads")
    K = keys.size("linear_key_head_dim", otherwise=lambda: int(0.75 * keys.size("hidden_size") / key_heads))
    V = keys.size("linear_value_head_dim", otherwise=lambda: 2 * K)
    negative = ":allow_neg_eigval=true" if keys.flag("linear_allow_neg_eigval") else ""
    return f"gated_deltanet{negative}", {"H": heads, "G": key_heads, "K": K, "V": V}


def kimi(keys: Keys) -> Layer:
    """Read Kimi Delta Attention: its section `linear_attn_config` comes before the other keys."""
    heads = keys.size("linear_attn_config.num_heads", "linear_num_heads")
    width = keys.size("linear_attn_config.head_dim", "linear_head_dim")
    bound = keys.bound("linear_attn_config.gate_lower_bound")
    if bound is None and not keys.is_null("linear_lower_bound"):
        bound = keys.bound("linear_lower_bound")
    return _kda(heads, width, bound)


def ling(keys: Keys) -> Layer:
    """Read Kimi Delta Attention of Ling, with heads as in attention."""
    bound = keys.bound("kda_lower_bound") if keys.flag("kda_safe_gate") else None
    return _kda(keys.size("num_attention_heads"), keys.size("head_dim"), bound)


def _kda(heads: int, width: int, bound: float | None) -> Layer:
    model = "kda" if bound is None else f"kda:lower_bound={bound}"
    return model, {"H": heads, "K": width, "V": width}


def lightning(keys: Keys) -> Layer:
    """Read lightning attention, with heads as in attention."""
    heads = keys.size("num_attention_heads")

    def share() -> int:
        return keys.divided("hidden_size", keys.size("hidden_size"), "num_attention_heads", heads)

    width = keys.size("head_dim", otherwise=share)
    return "tnl", {"H": heads, "K": width, "V": width}


def mamba2(keys: Keys) -> Layer:
    """Read Mamba-2 by the names of its own class."""
    return _mamba2(
        keys.size("num_heads"), keys.size("n_groups"), keys.size("state_size"), keys.size("head_dim")
    )


def nemotron(keys: Keys) -> Layer:
    """Read Mamba-2 of Nemotron-H."""
    groups = keys.size("mamba_n_groups", "n_groups")
    heads = keys.size("mamba_num_heads")
    return _mamba2(heads, groups, keys.size("ssm_state_size"), keys.size("mamba_head_dim"))


def hybrid_mamba2(keys: Keys) -> Layer:
    """Read Mamba-2 of Bamba, Granite and Falcon-H1; a head's width may be "auto"."""
    heads = keys.size("mamba_n_heads")
    if keys.find("mamba_d_head") in (None, "auto"):
        width = keys.divided("the width", _inner_width(keys), "mamba_n_heads", heads)
    else:
        width = keys.size("mamba_d_head")
    return _mamba2(heads, keys.size("mamba_n_groups"), keys.size("mamba_d_state"), width)


def zamba2(keys: Keys) -> Layer:
    """Read Mamba-2 of Zamba2, whose heads divide the width."""
    heads = keys.size("n_mamba_heads")
    width = keys.divided("the width", _inner_width(keys), "n_mamba_heads", heads)
    return _mamba2(heads, keys.size("mamba_ngroups"), keys.size("mamba_d_state"), width)


def _inner_width(keys: Keys) -> int:
    """Read the width of all heads together.

    Falcon-H1 has `mamba_d_ssm`: computed where it is null, a default where it is absent.
    """
    if "mamba_d_ssm" in keys.defaults and not keys.is_null("mamba_d_ssm"):
        return keys.size("mamba_d_ssm")
    return int(keys.factor("mamba_expand") * keys.size("hidden_size"))


def _mamba2(heads: int, groups: int, state: int, width: int) -> Layer:
    return "mamba2", {"H": heads, "G": groups, "K": state, "V": width}


def mamba(keys: Keys) -> Layer:
    """Read Mamba. A published `intermediate_size` counts, even where it is not `expand · hidden_size`."""

    def expanded() -> int:
        return int(keys.factor("expand") * keys.size("hidden_size"))

    D = keys.size("intermediate_size", otherwise=expanded)
    return "mamba", {"D": D, "N": keys.size("state_size")}


def jamba(keys: Keys) -> Layer:
    """Read Mamba of Jamba, where `intermediate_size` is the MLP's."""
    return "mamba", {"D": _inner_width(keys), "N": keys.size("mamba_d_state")}


def griffin(keys: Keys) -> Layer:
    """Read the RG-LRU of RecurrentGemma."""
    return "rg_lru", {"C": keys.size("lru_width", "hidden_size")}


def xlstm(keys: Keys) -> Layer:
    """Read mLSTM: shares of the width, rounded up to a multiple of 64, are divided among the heads."""
    heads = keys.size("num_heads")
    width = keys.size("hidden_size", "embedding_dim")
    shares = {"K": keys.factor("qk_dim_factor"), "V": keys.factor("v_dim_factor")}
    rounded = {letter: int((width * share + 63) // 64 * 64) for letter, share in shares.items()}
    sizes = {letter: keys.divided("the width", size, "num_heads", heads) for letter, size in rounded.items()}
    return "mlstm", {"H": heads, **sizes}


def rwkv7(keys: Keys) -> Layer:
    """Read RWKV-7. The class prefers the width of a head to the number of heads where both are there."""
    width, K = keys.size("hidden_size"), keys.size("head_dim")
    heads = keys.divided("hidden_size", width, "head_dim", K)
    values = keys.find("value_dim")
    if isinstance(values, list) and values and all(each == values[0] for each in values):
        values = values[0]
    all_values = width if values is None else whole(values, f"{keys.path}: value_dim")
    return "rwkv7", {"H": heads, "K": K, "V": keys.divided("value_dim", all_values, "the heads", heads)}
