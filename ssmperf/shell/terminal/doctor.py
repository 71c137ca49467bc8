"""The findings of `ssmperf doctor`: packages, devices, backends, ceilings, calibration."""

from __future__ import annotations

from typing import Any

from ssmperf.engine.machine import devices as devices_
from ssmperf.engine.machine.calibration import Calibration
from ssmperf.engine.registry.declarations import installed
from ssmperf.shell.terminal import calibration
from ssmperf.shell.terminal.display import brief
from ssmperf.shell.terminal.lists import listing

OPTIONAL = {
    "triton": "the triton backends",
    "fla": "peer kernels of flash-linear-attention, in the extra `peers`",
    "tilelang": "back ends that fla may choose",
    "accelerated_scan": "peer kernels of accelerated-scan, in the extra `peers`",
    "mlstm_kernels": "peer kernels of the mLSTM's authors, in the extra `peers`",
    "mamba_ssm": "the peer kernels of Mamba-2, which mamba-ssm's build installs",
    "selective_scan_cuda": "the peer kernels of Mamba, which mamba-ssm's build compiles",
    "cuda.core": "the cuda backends",
}


def examine(device: str) -> dict[str, Any]:
    """Collect the environment, optional packages, measured ceilings and backends of a device.

    Raises:
        UsageError: there is no such device.
    """
    from ssmperf.engine.machine.ceilings import measure_ceilings
    from ssmperf.engine.machine.environment import capture

    _, names = devices_.resolve(device)
    return {
        "device": names[0],
        "environment": capture(names[0]),
        "ceilings": measure_ceilings(names[0]).to_json(),
        "packages": {name: installed(name) for name in OPTIONAL},
        "backends": listing.backends(),
    }


def as_text(found: dict[str, Any]) -> str:
    """Format the findings as readable text."""
    lines = [f"device: {found['device']}"]
    environment = {name: value for name, value in found["environment"].items() if "calibration" not in name}
    lines += _nested(environment)
    known = found["environment"]["calibration"]
    lines += calibration.section(
        Calibration.from_json(known) if known else None, found["environment"]["calibration_reason"]
    )
    lines += ["measured ceilings:", *_nested(found["ceilings"], 1), "optional packages:"]
    for name, present in found["packages"].items():
        state = "installed" if present else f"not installed (needed for {OPTIONAL[name]})"
        lines.append(f"  {name}: {state}")
    lines.append("backends:")
    for entry in found["backends"]:
        lines.append(f"  {entry['recurrence']}/{entry['name']}: {brief(entry['reason']) or 'available'}")
    return "\n".join(lines)


def _nested(data: dict[str, Any], depth: int = 0) -> list[str]:
    indent = "  " * depth
    lines = []
    for name, value in data.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}:", *_nested(value, depth + 1)]
        else:
            lines.append(f"{indent}{name}: {value}")
    return lines
