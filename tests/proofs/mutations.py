"""Plant deliberate faults, each alone in a copy of the tree; the correctness suite or a test must see each.

    python tests/proofs/mutations.py [NAME...] [--write]      --write renews the table in docs/correctness.md

Ends with exit code 1 if a fault was not caught, if the text that it replaces is gone, or if a test fails
without a fault.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "correctness.md"
BEGIN, END = "<!-- mutations -->", "<!-- end of mutations -->"
CAUGHT = ("wrong", "nan")


class Missed(Exception):
    """A fault that could not be planted, or that nothing caught."""


@dataclass(frozen=True)
class Mutation:
    """Replace `old`, which occurs once in `file`, by `new`, and select cases that should see it.

    test: a test that should fail, instead of cases: for faults that lowering and definition share.
    """

    name: str
    file: str
    old: str
    new: str
    models: str = ""
    backends: str = ""
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    test: str = ""

    def planted(self, root: Path) -> str:
        """The file's text with the fault. Raises Missed where `old` does not occur just once."""
        text = (root / self.file).read_text()
        count = text.count(self.old)
        if count != 1:
            raise Missed(f"{self.file} has {count} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)


MUTATIONS = (
    Mutation(
        "operator order swapped in the down-sweep",
        "impls/scan/blelloch.py",
        "combine(prefix, left)",
        "combine(left, prefix)",
        "scan",
        "blelloch",
        ("--regime", "s4d/data"),
    ),
    Mutation(
        "mask multiplied instead of selected",
        "impls/scan/common.py",
        "torch.where(later.unsqueeze(-1), x.unsqueeze(-2), 0)",
        "(later.unsqueeze(-1) * x.unsqueeze(-2))",
        "scan",
        "surrogate",
        ("--regime", "reset/data"),
    ),
    Mutation(
        "what passes through a chunk dropped from the log-gate gradient",
        "impls/linear_attention/_triton/chunks.py",
        "tl.sum(state * start, axis=1), mask=keys < K)",
        "0 * tl.sum(state * start, axis=1), mask=keys < K)",
        "gla",
        "triton",
        ("--axis", "T=35"),
        {"TRITON_INTERPRET": "1"},
    ),
    Mutation(
        "ZOH for Euler",
        "impls/models/mamba.py",
        '"A": -torch.exp(gate_precision(self.A_log)),\n        }',
        '"A": -torch.exp(gate_precision(self.A_log)), "discretization": "zoh"\n        }',
        "mamba",
        "sequential",
    ),
    Mutation(
        "√(1−a) for √(1−a²)",
        "impls/models/rg_lru.py",
        "_ClippedRoot.apply(-torch.expm1(2 * log_a))",
        "_ClippedRoot.apply(-torch.expm1(log_a))",
        "rg_lru",
        "sequential",
    ),
    Mutation(
        "unpadded FFT",
        "impls/long_conv/fft.py",
        "next_fast_len(T + len(lags) - 1, real=True)",
        "max(T, len(lags))",
        "long_conv",
        "fft",
        ("--regime", "s4d,analytic"),
    ),
    Mutation(
        "log g(h₀)",
        "impls/scan/logspace.py",
        "torch.cat([initial_state.unsqueeze(1), b], dim=1)",
        "torch.cat([torch.where(initial_state >= 0, initial_state + 0.5, torch.sigmoid(initial_state))"
        ".unsqueeze(1), b], dim=1)",
        "mingru_pos",
        "logspace",
    ),
    Mutation(
        "gate on the value axis",
        "impls/linear_attention/sequential.py",
        "over_time(gate(x.log_a, x.phase), x.T).unsqueeze(-1)",
        "over_time(gate(x.log_a, x.phase), x.T).unsqueeze(-2)",
        "gla",
        "sequential",
    ),
    Mutation(
        "conjugate forgotten",
        "impls/scan/common.py",
        "grad_gate = adjoint * (a * before).conj()",
        "grad_gate = adjoint * (a * before)",
        "gateloop",
        "logspace",
    ),
    Mutation(
        "bonus read after the update",
        "impls/linear_attention/common.py",
        "output = output + (x.q * bonus.to(x.q.dtype) * x.k)",
        "output = output + (x.q * (1 + bonus.to(x.q.dtype)) * x.k)",
        "rwkv5",
        "chunkwise",
    ),
    Mutation(
        "phase sign (LRPE with complex keys: xPos)",
        "impls/models/retnet.py",
        '"phase": torch.pow(10000.0',
        '"phase": -torch.pow(10000.0',
        "retnet_xpos",
        "sequential",
    ),
    Mutation(
        "float32 phase sum",
        "impls/scan/common.py",
        "phase = three_axes(phase.to(torch.float64))",
        "phase = three_axes(phase.to(torch.float32))",
        "scan",
        "surrogate",
        ("--regime", "phase/data_complex"),
    ),
    Mutation(
        "lag divided by the length",
        "impls/models/tnn.py",
        "h = h / T if self.by_length else h",
        "h = h / T",
        "tnn",
        "fft",
    ),
    Mutation(
        "sign of the slope flipped in a fixed oscillation",
        "impls/models/lcsm.py",
        "return -slopes(self.k * self.d",
        "return slopes(self.k * self.d",
        "lcsm:1-0f-1-0",
        "sequential",
    ),
    Mutation(
        "rank from the inner width",
        "impls/models/_parts.py",
        "inner / (EXPANSION * CHANNELS_PER_RANK)",
        "inner / CHANNELS_PER_RANK",
        test="tests/suites/claims/test_counts.py::test_the_ten_rows_of_table_3_and_llamas_are_counted",
    ),
    Mutation(
        "depth not passed (TNL)",
        "impls/models/tnl.py",
        '[{"depth": layer / layers} for layer in range(layers)]',
        "[{} for layer in range(layers)]",
        test="tests/impls/models/test_models_networks.py::test_decays_of_tnl_shrink_with_depth",
    ),
    Mutation(
        "depth not passed (lower bounds)",
        "impls/models/hgrn.py",
        "LayerBound(bounds, layer)}",
        "LayerBound(bounds, 0)}",
        test="tests/impls/models/test_models_networks.py::test_the_lower_bounds_of_all_layers_come_from_one_parameter",
    ),
    Mutation(
        "random start of a data-independent oscillation",
        "impls/models/lcsm.py",
        'return sloped(k, d, tau=self.code.tau) if self.code.o == "0" else nn.Parameter',
        "return nn.Parameter",
        test="tests/impls/models/test_lcsm.py::test_a_data_independent_oscillation_starts_as_alibi_slopes",
    ),
    Mutation(
        "convolution over x alone (Mamba-2)",
        "impls/models/_blocks.py",
        "inputs = functional.silu(convolved)",
        "inputs = functional.silu(convolved)\n"
        "        inner = inputs.shape[-1] - 2 * self.mixer.shape['K']\n"
        "        inputs[..., inner:] = projected[..., inner:]",
        test="tests/impls/models/test_blocks.py::test_the_block_of_mamba2_convolves_the_projections_of_its_input",
    ),
)


def tree(folder: Path) -> None:
    """Copy the package and the tests into a folder, as they lie in the checkout."""
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for part in ("ssmperf", "impls", "suites", "reports", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=hidden)


def called(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy of the tree."""
    paths = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env={**os.environ, **paths, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def tested(tests: Iterable[str], folder: Path) -> subprocess.CompletedProcess[str]:
    quick = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--part", "quick"]
    return called([*quick, *tests], folder, {})


def caught(mutation: Mutation, folder: Path) -> str:
    """Run the suite or the test on the faulty tree, then mend it, and say what saw the fault."""
    file, out = folder / mutation.file, folder / "run"
    faulty, whole = mutation.planted(ROOT), file.read_text()
    shutil.rmtree(out, ignore_errors=True)
    file.write_text(faulty)
    try:
        if mutation.test:
            done = tested([mutation.test], folder)
        else:
            command = [
                *("-c", "from ssmperf.shell.cli import main; main()"),
                *("run", "--suite", "correctness", "--device", "cpu", "--out", str(out)),
                *("--models", mutation.models, "--backends", mutation.backends, *mutation.options),
            ]
            done = called(command, folder, mutation.environment)
    finally:
        file.write_text(whole)
    if mutation.test:
        failed = re.search(r"^FAILED \S+?::(\S+)", done.stdout, flags=re.MULTILINE)
        if done.returncode != 1 or failed is None:
            raise Missed(f"the test ended with exit code {done.returncode}: {done.stdout[-400:]}")
        return f"`{failed[1]}`"
    if done.returncode:
        raise Missed(f"the run ended with exit code {done.returncode}: {done.stderr[-400:]}")
    records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    for record in records:
        if record["status"] in CAUGHT:
            subject = record["model"] or f"{record['recurrence']}[{record['operand_source']}]"
            return f"{subject} {record['backend']} `{record['status']}` {record['reason']}"
    ended = ", ".join(sorted({f"{record['status']} ({record['reason']})" for record in records}))
    raise Missed(f"no record is wrong: {ended}")


def table(rows: list[tuple[Mutation, str]]) -> str:
    """The table of the document."""
    lines = ["| fault | in | seen as |", "| --- | --- | --- |"]
    lines += [f"| {m.name} | `{m.file}` | {reason.replace('|', '∣')} |" for m, reason in rows]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    names = [argument for argument in arguments if argument != "--write"]
    unknown = [name for name in names if name not in {m.name for m in MUTATIONS}]
    if unknown:
        print(f"no such fault: {', '.join(unknown)} (known: {', '.join(m.name for m in MUTATIONS)})")
        return 2
    chosen = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    rows, missed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        tree(Path(folder))
        tests = [mutation.test for mutation in chosen if mutation.test]
        if tests and (done := tested(tests, Path(folder))).returncode:
            print(f"tests fail without a fault:\n{done.stdout[-2000:]}")
            return 1
        for mutation in chosen:
            try:
                rows.append((mutation, caught(mutation, Path(folder))))
                print(f"caught  {mutation.name}: {rows[-1][1]}", flush=True)
            except Missed as problem:
                missed += 1
                print(f"MISSED  {mutation.name}: {problem}", flush=True)
    if "--write" in arguments and not missed and not names:
        text = DOCUMENT.read_text()
        head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
        DOCUMENT.write_text(f"{head}{BEGIN}\n\n{table(rows)}\n\n{END}{tail}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
