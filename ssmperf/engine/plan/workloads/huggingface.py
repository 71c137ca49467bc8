"""Read the linear layer of a model from its Hugging Face config.json, as JSON alone: no code of it is run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.plan.workloads.configuration_classes import BY_TYPE, ConfigurationClass
from ssmperf.engine.plan.workloads.configuration_keys import Keys
from ssmperf.engine.plan.workloads.user_file import LONGEST, parsed, shown, whole
from ssmperf.engine.plan.workloads.workload import Workload
from ssmperf.errors import UnknownName, UsageError

NESTED = ("text_config", "llm_config")  # sections with the language model of one that also sees or hears
REPOSITORY = re.compile(r"[\w.-]+/([\w.-]+)")
CACHED = re.compile(r"models--.+?--(.+)")  # a folder of Hugging Face's cache


def of_configuration(path: Path) -> Workload:
    """Read a model's configuration.

    Raises:
        UnknownName: no class here reads its `model_type`.
        UsageError: the file cannot be read, a key of it is wrong, or the model has no linear layer.
    """
    root = parsed(path, json.loads, "JSON")
    if not isinstance(root, dict):
        raise UsageError(f"{path}: a configuration is an object {{…}} with a model_type, got {shown(root)}")
    values, kind = language_model(path, root)
    owner = f"{kind.name}, {kind.package}"
    keys = Keys(path, values, owner, kind.defaults)
    model, sizes = kind.layer(keys)
    linear, total = kind.layers(keys)
    if not linear:
        raise UsageError(f"{path}: none of its {total} layers is linear; name a model that has linear layers")
    return Workload(
        name=name_of(path, root),
        model=model,
        sizes=checked_sizes(path, sizes),
        layers=(linear, total),
        context=context_of(keys),
        gates=kind.bounded_gates if "lower_bound" in model else kind.gates,
        source=f"{path} ({owner})",
        assumed=keys.assumed,
    )


def language_model(path: Path, root: Mapping[str, Any]) -> tuple[Mapping[str, Any], ConfigurationClass]:
    """Find the section of the language model, and the class that reads it.

    Raises:
        UnknownName: there is no such class.
        UsageError: there is no `model_type`.
    """
    section = next((root[key] for key in NESTED if isinstance(root.get(key), dict)), root)
    model_type = section.get("model_type") or root.get("model_type")
    if not isinstance(model_type, str):
        raise UsageError(f"{path}: model_type must be a text such as 'qwen3_next', got {shown(model_type)}")
    if model_type not in BY_TYPE:
        raise UnknownName(f"model_type in {path}:", shortened(model_type), BY_TYPE)
    return section, BY_TYPE[model_type]


def shortened(text: str) -> str:
    """Shorten a text that a message repeats."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def checked_sizes(path: Path, sizes: Mapping[str, int]) -> dict[str, int]:
    """Order the sizes, without G where it equals H.

    Raises:
        UsageError: a size is out of range, or key heads do not divide heads.
    """
    checked = {letter: whole(size, f"{path}: {letter}") for letter, size in sizes.items()}
    try:
        return dict(Shape(checked))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def context_of(keys: Keys) -> int | None:
    """Read the longest sequence; None if the file does not say it. Raises UsageError for a wrong number."""
    value = keys.find("max_position_embeddings", "model_max_length")
    return None if value is None else whole(value, f"{keys.path}: max_position_embeddings", LONGEST)


def name_of(path: Path, root: Mapping[str, Any]) -> str:
    """Name a configuration after its file, or if that is config.json after its repository or its folder."""
    if path.stem != "config":
        return plain(path.stem)
    written = root.get("_name_or_path")
    repository = REPOSITORY.fullmatch(written) if isinstance(written, str) else None
    if repository:
        return plain(repository[1])
    folders = path.resolve().parents
    cached = next((found for each in folders if (found := CACHED.fullmatch(each.name))), None)
    return plain(cached[1] if cached else folders[0].name)


def plain(text: str) -> str:
    """Keep letters, digits, dots and hyphens, in lower case."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "config"
