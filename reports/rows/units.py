"""Numbers as text. A field's name gives its unit: `latency_s`, `peak_bytes`, `copy_fraction`."""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

LONGEST_TEXT = 4000  # characters of one text from outside
MOST_VALUES = 100  # of a list; the data formats have all

_LARGE = ("", "k", "M", "G", "T", "P")
_SMALL = ("", "m", "µ", "n", "p")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_RANGES = ("growth_exponent", "predicted_largest_T")  # shown as ranges where a record has their ends
_POINTS = {"growth_exponent": "lengths"}  # what is fitted, and the sizes it is fitted to
# with what turns the direction of text: one such character can reverse a whole row
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff]+")

# Longest suffix first: bandwidth_bytes_per_s is a rate, not a time.
_SUFFIXES = ("_bytes_per_s", "_flops_per_s", "_per_s", "_bytes", "_fraction", "_s", "_j", "_w", "_hz")
_LABELS = {
    "latency_s": "time",
    "issue_s": "host's time to issue",
    "tokens_per_s": "tokens/s",
    "copy_fraction": "of copy",
    "limit_fraction": "of limit",
    "bandwidth_bytes_per_s": "bandwidth",
    "peak_bytes": "peak memory",
    "spent_s": "time of the run",
    "least_bytes": "least bytes",
    "speedup": "vs sequential",
    "peak_over_declared": "peak / declared",
    "saved_bytes": "for backward",
    "lengths": "T",
    "peaks_bytes": "peak memory",
    "declared_peaks_bytes": "declared peak memory",
    "growth_exponent": "power of T",
    "predicted_largest_T": "predicted T",
    "predicted_largest_B": "predicted B",
    "declared_largest_T": "declared T",
    "declared_largest_B": "declared B",
    "error_ratio": "error / tolerance",
    "subject": "model",
    "chances": "by chance",
    "majority_accuracies": "most frequent answer",
    "majority_accuracy": "most frequent answer",
    "first_wrong_step": "first wrong",
    "first_nan_step": "first NaN",
    "deterministic": "same bits",
    "gate_dtype_difference": "bf16 gates",
    "tf32_difference": "tf32",
}


_LEGEND = {
    "declared_": "declared: what a call needs by its backend's declaration",
    "predicted_": "predicted: the largest size that fits by the growth of the measured peaks, not tried",
    "growth_exponent": "power of T: the p of peak ∝ T^p, fitted to the measured lengths",
}


def legend(names: Iterable[str]) -> str:
    """Explain the words declared, predicted and power, as far as columns have them."""
    known = [*names]
    return "; ".join(text for start, text in _LEGEND.items() if any(name.startswith(start) for name in known))


def missing(value: Any) -> bool:
    """Whether a value is None, NaN, as a frame has it in its place, or infinite, as sums of huge ones are."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def as_json(value: Any) -> Any:
    """Replace each number in nested data that JSON does not have by None."""
    if isinstance(value, Mapping):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return None if isinstance(value, float) and missing(value) else value


def is_number(value: Any) -> bool:
    """Whether a value of a frame is a number that is not missing; truth values are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and not missing(value)


def as_float(value: Any) -> float | None:
    """Give a number of a frame as a float; None for anything else."""
    return float(value) if is_number(value) else None


def plain(text: Any) -> str:
    """Put text from outside on one line: bounded, without control characters and terminal escapes."""
    if missing(text):
        return ""
    line = _CONTROL.sub(" ", str(text)).strip()
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…"


def plain_lines(text: Any) -> str:
    """Take control characters and terminal escapes out of text from outside, line by line."""
    return "" if missing(text) else "\n".join(_CONTROL.sub(" ", line) for line in str(text).splitlines())


def is_time(name: str | None) -> TypeGuard[str]:
    """Whether there is a field of this name and it is a time."""
    return suffix(name or "") == "_s"


def suffix(name: str) -> str:
    """Give the unit suffix of a field name, or an empty string."""
    return next((end for end in _SUFFIXES if name.endswith(end)), "")


def label(name: str) -> str:
    """Turn a field name into a column heading, such as `first_call_s` into `first call`."""
    if name in _LABELS:
        return _LABELS[name]
    end = suffix(name)
    stem = name[: -len(end)] if end else name
    return stem.replace("_", " ") + ("/s" if end == "_per_s" else "")


def unit(name: str) -> str:
    """Give a field's SI unit, for axis titles; empty for a pure number."""
    return {"_s": "s", "_bytes": "B", "_bytes_per_s": "B/s", "_flops_per_s": "FLOP/s", "_per_s": "1/s",
            "_j": "J", "_w": "W", "_hz": "Hz"}.get(suffix(name), "")  # fmt: skip


def axis_title(name: str) -> str:
    """Give an axis its title, such as `time (s)`; a dimension's letter has no unit."""
    return f"{label(name)} ({unit(name)})" if unit(name) else label(name)


def number(name: str, value: Any) -> str:
    """Format a value of the field `name` with its unit; a missing value is a dash."""
    if missing(value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)) and not any(isinstance(item, (Mapping, list)) for item in value):
        more = f", … ({len(value):,} values)" if len(value) > MOST_VALUES else ""
        return ", ".join(map(plain, value[:MOST_VALUES])) + more or "–"
    if isinstance(value, (Mapping, list, tuple)):
        return plain(json.dumps(value, ensure_ascii=False, default=str))
    if not isinstance(value, (int, float)):
        return plain(value)
    if name == "speedup":
        return ratio(value)
    if name == "error_ratio":
        return f"{value:.2g}"
    end = suffix(name)
    if end == "_fraction":
        percent = 100 * value
        digits = ".0f" if abs(percent) >= 9.95 else ".1f" if abs(percent) >= 0.995 or not value else ".2g"
        return f"{percent:{digits}} %"
    if end == "_bytes":
        return _binary(value)
    if end:
        prefix = "" if end == "_per_s" else " "
        return _si(value, {"_per_s": ""}.get(end, unit(name)), prefix)
    if name.startswith(("error", "tolerance", "decay")):
        return f"{value:.1e}" if value else "0"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 1e6 else _si(value, "", " ").strip()


def of_row(name: str, row: Mapping[str, Any]) -> str:
    """Format a row's value of a field, and say how far it is known.

    A number with a reason beside it, as `largest_T_reason`, is a lower bound: `≥57,344`. A power that was
    fitted to two sizes, through which any power goes, says so. What sizes do not agree on is a range.
    """
    value = row.get(name)
    text = number(name, value)
    ends = [row.get(end) for end in interval_names(name)] if name in _RANGES else []
    if ends and all(map(is_number, ends)):
        return "–".join(number(name, end) for end in ends)
    if is_bound(name, row):
        return f"≥{text}"
    points = row.get(_POINTS.get(name, ""))
    two = is_number(value) and isinstance(points, list) and len(points) == 2
    return f"{text} (2 sizes)" if two else text


def is_bound(name: str, row: Mapping[str, Any]) -> bool:
    """Whether a row's value of a field is a lower bound: a number beside which stands a reason."""
    return is_number(row.get(name)) and bool(plain(row.get(f"{name}_reason")))


def ratio(value: Any) -> str:
    """Format a ratio with three digits at most, such as `12.3×`."""
    if missing(value):
        return "–"
    if value >= 1e6:
        return f"{value:.3g}×"
    digits = ".0f" if value >= 99.5 else ".1f" if value >= 9.95 else ".2f" if value >= 0.095 else ".1g"
    return f"{value:{digits}}×"


def spread(value: float, low: Any, high: Any) -> str:
    """Format the wider half of an interval around a value, such as `±1.2 %`; empty without an interval."""
    if not (is_number(low) and is_number(high) and value):
        return ""
    half = 100 * max(high - value, value - low, 0.0) / abs(value)
    return f"±{half:.0f} %" if half >= 9.5 else f"±{half:.1f} %"


def host_note(name: str, row: Mapping[str, Any]) -> str:
    """Say in the column `latency_s` that the host needs longer to issue a call than the device to run it.

    Returns:
        The host's time, such as `host 400 µs`; an empty text if it is shorter or unknown.
    """
    issue, latency = row.get("issue_s"), row.get("latency_s")
    known = name == "latency_s" and is_number(issue) and is_number(latency)
    return f"host {number('issue_s', issue)}" if known and float(issue) > float(latency) else ""  # type: ignore[arg-type]


def interval_names(name: str) -> tuple[str, str]:
    """Name the fields of a field's interval: `latency_s` has `latency_low_s` and `latency_high_s`."""
    end = suffix(name)
    stem = name[: -len(end)] if end else name
    return f"{stem}_low{end}", f"{stem}_high{end}"


def _binary(value: float) -> str:
    power = min(len(_BINARY) - 1, max(0, int(math.log2(value) // 10))) if value >= 1 else 0
    return f"{_digits(value / 1024**power)} {_BINARY[power]}"


def _si(value: float, symbol: str, gap: str) -> str:
    if value == 0:
        return f"0{gap}{symbol}"
    rounded = float(f"{value:.3g}")  # infinite just below the largest number
    power = math.floor(math.log10(abs(value if missing(rounded) else rounded)) / 3)
    power = max(1 - len(_SMALL), min(len(_LARGE) - 1, power))
    prefix = _LARGE[power] if power >= 0 else _SMALL[-power]
    return f"{_digits(value / 1000.0**power)}{gap if symbol or prefix else ''}{prefix}{symbol}".rstrip()


def _digits(value: float) -> str:
    """Format three significant digits, with trailing zeros, so that a column can be compared by eye."""
    size = abs(value)
    if size >= 1e5:  # beyond all prefixes
        return f"{value:.3g}"
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
