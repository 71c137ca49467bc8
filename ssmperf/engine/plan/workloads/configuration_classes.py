"""The classes of configurations whose models have linear layers: how each is read, and its defaults.

Read in the classes themselves, in the versions below. A default is listed only where sizes or layers need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ssmperf.engine.plan.workloads import layer_counts, layer_sizes
from ssmperf.engine.plan.workloads.configuration_keys import Keys
from ssmperf.engine.plan.workloads.layer_counts import Layers
from ssmperf.engine.plan.workloads.layer_sizes import Layer

TRANSFORMERS = "transformers 5.24.0"
FLA = "flash-linear-attention 0.6.0"
MINIMAX = "MiniMax's own code"

STEP = "dt the inverse softplus of exp U(log 1e-3, log 1e-1)"
DELTA_GATES = "−e^A softplus(a + dt) per value head; A = log U(0.01, 16), dt = 1"
OLMO_GATES = f"−e^A softplus(a + dt) per value head; A = log U(0, 16), {STEP}"
KIMI_GATES = f"−e^A softplus(f + dt), A per head, dt per key channel; A = log U(1, 16), {STEP}"
BOUNDED_GATES = f"bound · σ(e^A (f + dt)), A per head, dt per key channel; A = 0, {STEP}"
BOUNDED_LING_GATES = f"bound · σ(e^A (f + dt)), A per head, dt per key channel; A = log U(1, 16), {STEP}"
MAMBA2_GATES = f"−e^A softplus(a + dt) per head; A = log(1 .. H), {STEP}"
UNIT_STEP_GATES = "−e^A softplus(a + dt) per head; A = log(1 .. H), dt = 1"
MAMBA_GATES = f"−Δ n per channel and state n = 1 .. N; Δ = softplus(W x + dt), {STEP}"
JAMBA_GATES = "−Δ n per channel and state n = 1 .. N; Δ = softplus(W norm(x) + dt)"
GRIFFIN_GATES = "−8 σ(r) softplus(Λ) per channel; e^(−softplus Λ) area-uniform in [0.9, 0.999]"
XLSTM_GATES = "log σ(f) per head, input gate exp(i), capped; biases of f from 3 to 6 over the heads, of i −10"
SLOPES = "−2^(−8h/H) (1 − l/(L − 1)) in head h = 1 .. H of layer l = 0 .. L − 1"
RWKV7_GATES = "−e^(−1/2) σ(w) per key channel, which is above −0.607"


@dataclass(frozen=True, slots=True)
class ConfigurationClass:
    """A class of configurations.

    types: the `model_type`s that it reads.
    layer: reads the model and the sizes of its linear layers.
    layers: counts them.
    gates: their formula, and start as in the class.
    bounded_gates: the same where log gates have a lower bound.
    """

    name: str
    types: tuple[str, ...]
    layer: Callable[[Keys], Layer]
    layers: Layers
    gates: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    bounded_gates: str = ""
    package: str = TRANSFORMERS


QWEN = {
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "full_attention_interval": 4,
}
HYBRID_MAMBA2 = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_expand": 2,
}
MAMBA = {"hidden_size": 768, "num_hidden_layers": 32, "state_size": 16, "expand": 2}
FULL_EVERY = layer_counts.full_every("full_attention_interval")

CLASSES = (
    ConfigurationClass(
        "Qwen3NextConfig",
        ("qwen3_next",),
        layer_sizes.gated_deltanet,
        FULL_EVERY,
        DELTA_GATES,
        {**QWEN, "num_hidden_layers": 48},
    ),
    ConfigurationClass(
        "Qwen3_5TextConfig",
        ("qwen3_5", "qwen3_5_text"),
        layer_sizes.gated_deltanet,
        FULL_EVERY,
        DELTA_GATES,
        {**QWEN, "num_hidden_layers": 32},
    ),
    ConfigurationClass(
        "Qwen3_5MoeTextConfig",
        ("qwen3_5_moe", "qwen3_5_moe_text"),
        layer_sizes.gated_deltanet,
        FULL_EVERY,
        DELTA_GATES,
        {**QWEN, "num_hidden_layers": 40},
    ),
    ConfigurationClass(
        "Qwen4ExpTextConfig",
        ("qwen4_exp", "qwen4_exp_text"),
        layer_sizes.gated_deltanet,
        FULL_EVERY,
        DELTA_GATES,
        {**QWEN, "num_hidden_layers": 40},
    ),
    ConfigurationClass(
        "OlmoHybridConfig",
        ("olmo_hybrid",),
        layer_sizes.olmo,
        layer_counts.by_rule(lambda keys, layer: layer % 4 != 3),
        OLMO_GATES,
        {
            "hidden_size": 3840,
            "num_hidden_layers": 32,
            "num_attention_heads": 30,
            "linear_allow_neg_eigval": True,
        },
    ),
    ConfigurationClass(
        "KimiLinearConfig",
        ("kimi_linear",),
        layer_sizes.kimi,
        layer_counts.kimi,
        KIMI_GATES,
        {"num_hidden_layers": 27, "linear_head_dim": 128, "linear_num_heads": 32},
        bounded_gates=BOUNDED_GATES,
    ),
    ConfigurationClass(
        "Glm5NextTextConfig",
        ("glm5_next", "glm5_next_text"),
        layer_sizes.kimi,
        layer_counts.by_rule(lambda keys, layer: layer % 4 != 3),
        KIMI_GATES,
        {"num_hidden_layers": 45, "linear_head_dim": 128, "linear_num_heads": 64, "linear_lower_bound": -5.0},
        bounded_gates=BOUNDED_GATES,
    ),
    ConfigurationClass(
        "BailingHybridConfig",
        ("bailing_hybrid",),
        layer_sizes.ling,
        layer_counts.full_every("layer_group_size"),
        KIMI_GATES,
        {
            "num_hidden_layers": 42,
            "num_attention_heads": 32,
            "head_dim": 128,
            "layer_group_size": 6,
            "kda_safe_gate": True,
            "kda_lower_bound": -5.0,
        },
        bounded_gates=BOUNDED_LING_GATES,
    ),
    ConfigurationClass(
        "MiniMaxConfig",
        ("minimax",),
        layer_sizes.lightning,
        layer_counts.by_rule(lambda keys, layer: layer % 2 == 1),
        SLOPES,
        {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32},
    ),
    ConfigurationClass(
        "MiniMax-01 and -M1",
        ("minimax_text_01", "minimax_m1"),
        layer_sizes.lightning,
        layer_counts.lightning,
        SLOPES,
        package=MINIMAX,
    ),
    ConfigurationClass(
        "Mamba2Config",
        ("mamba2",),
        layer_sizes.mamba2,
        layer_counts.every,
        MAMBA2_GATES,
        {"num_hidden_layers": 64, "num_heads": 128, "n_groups": 8, "state_size": 128, "head_dim": 64},
    ),
    ConfigurationClass(
        "NemotronHConfig",
        ("nemotron_h",),
        layer_sizes.nemotron,
        layer_counts.nemotron,
        MAMBA2_GATES,
        {"mamba_num_heads": 128, "n_groups": 8, "ssm_state_size": 128, "mamba_head_dim": 64},
    ),
    ConfigurationClass(
        "FalconH1Config",
        ("falcon_h1",),
        layer_sizes.hybrid_mamba2,
        layer_counts.every,
        UNIT_STEP_GATES,
        {**HYBRID_MAMBA2, "mamba_d_ssm": 1024},
    ),
    ConfigurationClass(
        "BambaConfig",
        ("bamba",),
        layer_sizes.hybrid_mamba2,
        layer_counts.bamba,
        UNIT_STEP_GATES,
        HYBRID_MAMBA2,
    ),
    ConfigurationClass(
        "GraniteMoeHybridConfig",
        ("granitemoehybrid",),
        layer_sizes.hybrid_mamba2,
        layer_counts.by_rule(lambda keys, layer: True),
        UNIT_STEP_GATES,
        HYBRID_MAMBA2,
    ),
    ConfigurationClass(
        "Zamba2Config",
        ("zamba2",),
        layer_sizes.zamba2,
        layer_counts.every,
        MAMBA2_GATES,
        {
            "hidden_size": 2560,
            "num_hidden_layers": 54,
            "n_mamba_heads": 8,
            "mamba_ngroups": 1,
            "mamba_d_state": 64,
            "mamba_expand": 2,
        },
    ),
    ConfigurationClass("MambaConfig", ("mamba",), layer_sizes.mamba, layer_counts.every, MAMBA_GATES, MAMBA),
    ConfigurationClass(
        "FalconMambaConfig", ("falcon_mamba",), layer_sizes.mamba, layer_counts.every, MAMBA_GATES, MAMBA
    ),
    ConfigurationClass(
        "JambaConfig",
        ("jamba",),
        layer_sizes.jamba,
        layer_counts.jamba,
        JAMBA_GATES,
        {
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "mamba_d_state": 16,
            "mamba_expand": 2,
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
        },
    ),
    ConfigurationClass(
        "RecurrentGemmaConfig",
        ("recurrent_gemma",),
        layer_sizes.griffin,
        layer_counts.griffin,
        GRIFFIN_GATES,
        {
            "hidden_size": 2560,
            "num_hidden_layers": 26,
            "block_types": ("recurrent", "recurrent", "attention"),
        },
    ),
    ConfigurationClass(
        "xLSTMConfig",
        ("xlstm",),
        layer_sizes.xlstm,
        layer_counts.xlstm,
        XLSTM_GATES,
        {
            "embedding_dim": 4096,
            "num_blocks": 32,
            "num_heads": 8,
            "qk_dim_factor": 0.5,
            "v_dim_factor": 1.0,
        },
    ),
    ConfigurationClass(
        "RWKV7Config",
        ("rwkv7",),
        layer_sizes.rwkv7,
        layer_counts.rwkv7,
        RWKV7_GATES,
        {"hidden_size": 2048, "num_hidden_layers": 24, "head_dim": 64},
        package=FLA,
    ),
)

BY_TYPE = {model_type: each for each in CLASSES for model_type in each.types}
