"""Layers read from configurations: sizes as published, defaults that are shown, and refusals of one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmperf import Shape, UnknownName, UsageError
from ssmperf.engine.plan.workloads import reading
from ssmperf.engine.plan.workloads.configuration_classes import BY_TYPE, CLASSES
from ssmperf.engine.plan.workloads.huggingface import of_configuration
from ssmperf.engine.plan.workloads.workload import Workload

ROOT = Path(__file__).parents[5]
QWEN = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
KIMI = {
    "num_heads": 32,
    "head_dim": 128,
    "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
    "kda_layers": [each for each in range(1, 27) if each % 4],
}
KIMI_K3 = {
    "num_heads": 96,
    "head_dim": 128,
    "gate_lower_bound": -5.0,
    "full_attn_layers": list(range(1, 25)),
    "kda_layers": list(range(25, 94)),
}
MINIMAX = {"num_hidden_layers": 80, "num_attention_heads": 64, "head_dim": 128}
NEMOTRON_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
FALCON_MAMBA = {"hidden_size": 4096, "intermediate_size": 8192, "expand": 16}  # as published
FALCON_H1 = {"mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": 128}


def hybrid(linear: int, total: int, other: str = "attention") -> list[str]:
    return ["mamba"] * linear + [other] * (total - linear)


# configurations as published, by the workload whose sizes and layers they have
PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen3-next-80b": QWEN,
    "qwen3.5-27b": {
        "model_type": "qwen3_5",
        "text_config": {
            **QWEN,
            "model_type": "qwen3_5_text",
            "num_hidden_layers": 64,
            "linear_num_value_heads": 48,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        },
        "vision_config": {"model_type": "qwen3_5", "depth": 27},
    },
    "qwen3.5-35b-a3b": {
        "model_type": "qwen3_5_moe",
        "text_config": {**QWEN, "model_type": None, "num_hidden_layers": 40},
    },
    "olmo-hybrid-7b": {"model_type": "olmo_hybrid"},
    "kimi-linear-48b": {
        "model_type": "kimi_linear",
        "num_hidden_layers": 27,
        "linear_attn_config": KIMI,
        "model_max_length": 1048576,
    },
    "kimi-k3": {
        "model_type": "kimi_k3",
        "text_config": {
            "model_type": "kimi_linear",
            "num_hidden_layers": 93,
            "linear_attn_config": KIMI_K3,
        },
    },
    "glm-5.3-flash": {"model_type": "glm5_next", "text_config": {"model_type": "glm5_next_text"}},
    "ling-3.0-flash": {"model_type": "bailing_hybrid"},
    "minimax-01": {
        **MINIMAX,
        "model_type": "minimax",
        "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10,
    },
    "minimax-m1": {**MINIMAX, "model_type": "minimax_m1", "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10},
    "nemotron-3-nano-30b": {
        "model_type": "nemotron_h",
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "hybrid_override_pattern": NEMOTRON_NANO,
        "num_hidden_layers": 52,
    },
    "falcon-h1-34b": {
        **FALCON_H1,
        "model_type": "falcon_h1",
        "num_hidden_layers": 72,
        "mamba_n_heads": 32,
        "mamba_n_groups": 2,
        "mamba_d_ssm": 4096,
    },
    "falcon-h1-3b": {
        **FALCON_H1,
        "model_type": "falcon_h1",
        "num_hidden_layers": 32,
        "mamba_n_heads": 32,
        "mamba_d_head": "auto",
        "mamba_d_ssm": 4096,
    },
    "bamba-9b": {
        "model_type": "bamba",
        "num_hidden_layers": 32,
        "attn_layer_indices": [9, 18, 27],
        "mamba_d_state": 128,
    },
    "granite-4-h-small": {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 40,
        "mamba_d_state": 128,
        "layer_types": hybrid(36, 40),
    },
    "mamba2-780m": {
        "model_type": "mamba2",
        "num_hidden_layers": 48,
        "num_heads": 48,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
        "time_step_limit": [0.0, float("inf")],
    },
    "jamba-v0.1": {"model_type": "jamba", "intermediate_size": 14336},
    "falcon-mamba-7b": {"model_type": "falcon_mamba", "num_hidden_layers": 64, **FALCON_MAMBA},
    "recurrentgemma-2b": {"model_type": "recurrent_gemma", "lru_width": 2560},
    "recurrentgemma-9b": {"model_type": "recurrent_gemma", "hidden_size": 4096, "num_hidden_layers": 38},
    "xlstm-7b": {"model_type": "xlstm", "embedding_dim": 4096, "num_blocks": 32, "num_heads": 8},
    "rwkv7-0.1b": {"model_type": "rwkv7", "hidden_size": 768, "num_hidden_layers": 12, "num_heads": 32},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "own.json"


def read(file: Path, values: Any) -> Workload:
    file.write_text(json.dumps(values))
    return of_configuration(file)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_give_the_workloads_in_files(name: str, file: Path) -> None:
    expected = reading.of_name(name)
    found = read(file, PUBLISHED[name])
    assert (found.model, Shape(found.sizes)) == (expected.model, Shape(expected.sizes))
    assert found.layers == expected.layers
    assert found.trained_at == (4096, 2)


@pytest.mark.parametrize("model_type", BY_TYPE)
def test_defaults_alone_are_a_layer_and_are_shown(model_type: str, file: Path) -> None:
    """They are enough, but for lists of layers that a class does not have."""
    lists = {"nemotron_h": {"hybrid_override_pattern": "M*"}}
    minimax = {"num_attention_heads": 8, "head_dim": 64, "attn_type_list": [0, 1]}
    lists |= {"minimax_text_01": minimax, "minimax_m1": minimax}
    found = read(file, {"model_type": model_type, **lists.get(model_type, {})})
    assert found.gates and found.layers
    kind = BY_TYPE[model_type]
    assert all(f"{kind.name}, {kind.package}" in text for text in found.assumed.values())
    assert bool(found.assumed) == (kind.package != "MiniMax's own code")


def test_what_is_assumed_names_the_key_its_value_and_the_class(file: Path) -> None:
    del (partial := dict(QWEN))["linear_num_value_heads"]
    assert read(file, partial).assumed == {
        "linear_num_value_heads": "32 (default of Qwen3NextConfig, transformers 5.24.0)",
        "layer_types": "36 of 48 layers linear (rule of Qwen3NextConfig, transformers 5.24.0)",
    }


def test_a_complete_configuration_assumes_nothing(file: Path) -> None:
    layers = (["linear_attention"] * 3 + ["full_attention"]) * 12
    found = read(file, {**QWEN, "layer_types": layers, "max_position_embeddings": 262144})
    assert found.assumed == {}
    assert found.context == 262144
    assert found.source == f"{file} (Qwen3NextConfig, transformers 5.24.0)"


def test_rules_of_classes_where_the_file_has_no_list(file: Path) -> None:
    for values, layers in (
        ({**QWEN, "full_attention_interval": 2}, (24, 48)),
        ({"model_type": "kimi_linear"}, (21, 27)),
        ({"model_type": "minimax"}, (16, 32)),
        ({"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 0}, (24, 32)),
        ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "attention"]}, (13, 26)),
        ({"model_type": "granitemoehybrid"}, (32, 32)),
        ({"model_type": "nemotron_h", "layers_block_type": ["mamba", "mlp", "mamba"]}, (2, 3)),
        ({"model_type": "rwkv7", "attn": {"layers": [1, 5]}}, (22, 24)),
    ):
        assert read(file, values).layers == layers


def test_widths_that_classes_compute(file: Path) -> None:
    for values, sizes in (
        ({"model_type": "mamba", "hidden_size": 2560}, {"D": 5120, "N": 16}),
        ({"model_type": "falcon_h1", "mamba_d_ssm": None}, {"H": 128, "G": 1, "K": 256, "V": 64}),
        ({"model_type": "zamba2", "n_mamba_heads": 80}, {"H": 80, "G": 1, "K": 64, "V": 64}),
        ({"model_type": "minimax", "head_dim": None}, {"H": 32, "K": 128, "V": 128}),
        ({"model_type": "xlstm", "num_heads": 4}, {"H": 4, "K": 512, "V": 1024}),
        ({"model_type": "rwkv7", "value_dim": [4096] * 24}, {"H": 32, "K": 64, "V": 128}),
        ({"model_type": "olmo_hybrid", "linear_key_head_dim": 64}, {"H": 30, "K": 64, "V": 128}),
    ):
        assert read(file, values).sizes == sizes


def test_gates_with_and_without_a_bound(file: Path) -> None:
    free = read(file, {"model_type": "bailing_hybrid", "kda_safe_gate": False})
    assert free.model == "kda" and free.gates.startswith("−e^A softplus")
    bounded = read(file, {"model_type": "bailing_hybrid", "kda_lower_bound": -3})
    assert bounded.model == "kda:lower_bound=-3.0" and bounded.gates.startswith("bound · σ")
    assert read(file, {"model_type": "glm5_next_text", "linear_lower_bound": None}).model == "kda"
    assert (
        read(file, {"model_type": "olmo_hybrid", "linear_allow_neg_eigval": False}).model == "gated_deltanet"
    )


@pytest.mark.parametrize(
    ("path", "written", "name"),
    [
        ("Qwen3-Next.json", "Qwen/Other", "qwen3-next"),
        ("Folder of Mine/config.json", None, "folder-of-mine"),
        ("folder/config.json", "Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b-instruct"),
        ("folder/config.json", "./", "folder"),
        ("folder/config.json", 3, "folder"),
        ("models--Qwen--Qwen3.5-9B/snapshots/0a1b/config.json", None, "qwen3.5-9b"),
    ],
)
def test_names(path: str, written: object, name: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    assert read(file, {**QWEN, "_name_or_path": written}).name == name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[1]", "a configuration is an object {…} with a model_type, got [1]"),
        ("NaN", "got nan"),
        ("{}", "model_type must be a text such as 'qwen3_next', got None"),
        ('{"model_type": 3}', "got 3"),
        ('{"a":' * 200_000, "nested too deeply"),
        ("[" * 200_000 + "]" * 200_000, "nested too deeply"),
        ("9" * 5000, "is not JSON"),
        (" " * 1_000_001, "more than 1,000,000 bytes"),
        ('{"auto_map": {"AutoConfig": "evil.Config"}}', "model_type must be a text"),
    ],
)
def test_files_that_are_no_configuration_are_refused(text: str, reason: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        of_configuration(file)
    assert reason in str(refused.value) and str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        of_configuration(tmp_path / "config.json")
    with pytest.raises(UsageError, match=r"is no ordinary file; name a file such as .*config\.json"):
        of_configuration(tmp_path)


def test_an_unknown_model_type_lists_the_known_ones(file: Path) -> None:
    with pytest.raises(UnknownName, match=r"'llama'; .*known: bailing_hybrid, bamba, .*xlstm, zamba2"):
        read(file, {"model_type": "llama"})
    with pytest.raises(UnknownName, match="did you mean qwen3_next"):
        read(file, {"model_type": "qwen3_nxt"})
    with pytest.raises(UnknownName) as refused:
        read(file, {"model_type": "x\n" * 1000})
    assert len(str(refused.value)) < 800 and "\n" not in str(refused.value)


SIZE = "linear_num_value_heads"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({SIZE: "32"}, f"{SIZE} must be a whole number from 1 to 1,000,000, got '32'"),
        ({SIZE: True}, "got True"),
        ({SIZE: 32.0}, "got 32.0"),
        ({SIZE: float("nan")}, "got nan"),
        ({SIZE: -32}, "got -32"),
        ({SIZE: 0}, "got 0"),
        ({SIZE: 10**12}, "got 1000000000000"),
        ({SIZE: [32] * 1000}, "..."),
        ({SIZE: 24}, "G, the number of key heads, must divide H: got G = 16 and H = 24"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers must be at most 10,000, got 1,000,000"),
        ({"layer_types": ["full_attention"] * 48}, "none of its 48 layers is linear; name a model"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types has 3 layers, num_hidden_layers says 48"),
        ({"layer_types": "linear"}, "layer_types must be a list of texts, got 'linear'"),
        ({"layer_types": [1] * 48}, "layer_types must be a list of texts"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings must be a whole number"),
        ({"full_attention_interval": 0}, "full_attention_interval must be a whole number"),
        ({"model_type": "kimi_linear", "linear_attn_config": [1]}, "linear_attn_config must be an object"),
        (
            {"model_type": "kimi_linear", "linear_attn_config": {"gate_lower_bound": 5}},
            "a number below 0, got 5",
        ),
        ({"model_type": "bailing_hybrid", "kda_safe_gate": "no"}, "kda_safe_gate must be true or false"),
        ({"model_type": "minimax", "num_attention_heads": 3}, "hidden_size = 4096 is not divisible by"),
        ({"model_type": "minimax_m1"}, "the key num_attention_heads is missing"),
        ({"model_type": "minimax_m1", **MINIMAX}, "attn_type_list is missing"),
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern is missing, such as 'M-M*-'"),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "MX"},
            "must be a text of M, *, -, E, got 'MX'",
        ),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "**"}, "none of its 2 layers is linear"),
        ({"model_type": "jamba", "attn_layer_offset": 8}, "a whole number from 0 to 7, got 8"),
        ({"model_type": "jamba", "mamba_expand": float("inf")}, "mamba_expand must be a number above 0"),
        ({"model_type": "jamba", "mamba_expand": 1e-9}, "D must be a whole number"),
        ({"model_type": "rwkv7", "value_dim": [2048, 4096]}, "value_dim must be a whole number"),
    ],
)
def test_wrong_values_are_refused(changed: dict[str, Any], reason: str, file: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read(file, {**QWEN, **changed})
    assert reason in str(refused.value) and str(file) in str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < len(str(file)) + 200


KEYS = sorted(
    {key for each in CLASSES for key in each.defaults} | {key for each in PUBLISHED.values() for key in each}
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "auto", "M*", "mamba"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["layers", "head_dim"]), inner)
    ),
    max_leaves=6,
)


@given(st.sampled_from(list(BY_TYPE)), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5))
def test_any_values_give_a_layer_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, model_type: str, values: dict[str, Any]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    try:
        found = read(file, {"model_type": model_type, **values})
    except UsageError as refused:
        assert "\n" not in str(refused)
    else:
        assert found.layers is not None and 1 <= found.layers[0] <= found.layers[1]
        assert min(found.sizes.values()) >= 1


def test_each_type_has_one_class_and_is_in_the_documents() -> None:
    assert len(BY_TYPE) == sum(len(each.types) for each in CLASSES)
    text = (ROOT / "docs" / "workloads.md").read_text()
    rows = text.partition("| `model_type` |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(CLASSES)
    for each, line in zip(CLASSES, rows, strict=True):
        assert ", ".join(f"`{name}`" for name in each.types) in line
        assert each.name in line and each.package in line


def test_reading_imports_neither_torch_nor_transformers(file: Path) -> None:
    file.write_text(json.dumps({**QWEN, "auto_map": {"AutoConfig": "evil.Config"}}))
    code = (
        "import sys; from pathlib import Path\n"
        "from ssmperf.engine.plan.workloads.huggingface import of_configuration\n"
        "of_configuration(Path(sys.argv[1]))\n"
        "print(sorted({'torch', 'transformers', 'evil'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
