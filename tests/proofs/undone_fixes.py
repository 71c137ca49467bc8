"""Undo fixes of fused kernels, each alone in a copy of the tree; `fuzz` must find each fault again.

    python tests/proofs/undone_fixes.py [COMMIT...]

Kernels run in Triton's interpreter, so no GPU is needed. It is slow, so the space of each fix is narrow: few
kinds of gates, one dtype, small sizes. Ends with exit code 1 if a fault was not found, or if the text that
undoes a fix is gone. docs/correctness.md names the fixes that are not undone here.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where it runs as a script

from proofs import mutations

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 60  # the first faulty one is among them; a limit in time would depend on the machine
LINEAR = "impls/linear_attention/"
CHILD = "--in-copy"


@dataclass(frozen=True)
class UndoneFix:
    """A fix, the text that undoes it, and the narrow space in which its fault is sought.

    sizes: largest size, steps, elements and batch. seed: of the draws; in the narrow spaces
    of float16, one example in 40 shows the fault, and seeds are such that one of the first does.
    """

    commit: str
    fault: str
    undo: tuple[mutations.Mutation, ...]
    gates: tuple[str, ...]
    dtype: str
    pass_: str
    sizes: tuple[int, int, int, int]
    seed: int = 1


def _undo(file: str, *replaced: tuple[str, str]) -> tuple[mutations.Mutation, ...]:
    return tuple(mutations.Mutation(file, file, old, new) for old, new in replaced)


FIXES = (
    UndoneFix(
        "f7396cd", "one step under real gates returned a complex state",
        _undo(
            LINEAR + "_triton/decode.py",
            (
                "    is_complex = phase is not None\n",
                "    is_complex = phase is not None or (state is not None and state.is_complex())\n",
            ),
            ("state = state.real if phase is None else state.to(", "state = state.to("),
        ),
        ("none", "scalar", "key"), "float32", "decode", (8, 1, 256, 2),
    ),
    UndoneFix(
        "be13e11", "a kernel read the memory of a negated view without its sign",
        _undo("impls/_triton/plan.py", ("if plan.doubtful and any(", "if False and any(")),
        ("none", "scalar", "key"), "float32", "decode", (8, 1, 256, 2),
    ),
    UndoneFix(
        "1ee6945", "the first head got the gradient of all where a view of one head is a leaf",
        _undo(
            LINEAR + "triton.py",
            (
                "elif expanded(q, k, v.shape[2]) and not differentiates(q, k):",
                "elif expanded(q, k, v.shape[2]):",
            ),
        ),
        ("scalar", "none"), "float16", "forward_backward", (4, 4, 64, 3), 7,
    ),
    UndoneFix(
        "52f5c47", "adjoints under key gates below e^-9 lost float16's digits",
        _undo(
            LINEAR + "_triton/walking.py",
            ("lead = reverse and self.dtype == torch.float16", "lead = False"),
        ),
        ("key",), "float16", "forward_backward", (6, 12, 256, 1), 8,
    ),
    UndoneFix(
        "825316c", "adjoints under scalar gates below e^-9 left float16's range",
        _undo(
            LINEAR + "_triton/walk.py",
            (
                "decay = (to_end, from_first, rest_of_chunk, through_first)",
                "decay = (to_end, from_start, total, 1.0)",
            ),
        ),
        ("scalar",), "float16", "forward_backward", (6, 5, 64, 1), 8,
    ),
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Undo the fixes that are named, or all. Returns the exit code."""
    if arguments[:1] == [CHILD]:
        return find(next(fix for fix in FIXES if fix.commit == arguments[1]))
    known = {fix.commit: fix for fix in FIXES}
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(f"no fix {', '.join(unknown)} (fixes: {' '.join(known)})", file=sys.stderr)
        return 2
    return max([undone(known[name]) for name in arguments or known])


def undone(fix: UndoneFix) -> int:
    """Look for a fault in a copy in which its fix is undone. Returns 1 if it is not found."""
    print(f"{fix.commit}: {fix.fault}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        mutations.tree(copy)
        for undo in fix.undo:
            (copy / undo.file).write_text(undo.planted(copy))
        own = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        run = mutations.called([__file__, CHILD, fix.commit], copy, own)
    print(
        run.stdout + (run.stderr if run.returncode not in (0, 1) or not run.stdout else ""),
        end="",
        flush=True,
    )
    return run.returncode


def find(fix: UndoneFix) -> int:
    """Fuzz the backend of this process's tree in the space of a fix; 1 if no fault is found."""
    from dataclasses import replace

    from ssmperf.authors.fuzzing.configurations import draws
    from ssmperf.authors.fuzzing.configurations.space import Budget, Space
    from ssmperf.authors.fuzzing.in_process import FuzzBench, ThisProcess
    from ssmperf.authors.fuzzing.session import FuzzSession, Goal
    from ssmperf.authors.verification.verify import NO_CEILINGS
    from ssmperf.engine import registry
    from ssmperf.engine.execute.context import Settings
    from ssmperf.engine.execute.request import select

    class UntilFault(FuzzSession):
        def _reached(self, ends_s: float) -> bool:
            return bool(self.faults) or super()._reached(ends_s)

    draws.EXAMPLES = 3  # nothing is compiled, so classes cost no more than examples
    size, steps, elements, batch = fix.sizes
    selection, (device, *_) = select(models=("linear_attention",), device="cpu")
    entry = registry.backend("linear_attention", "triton")
    narrow = replace(entry, gates=fix.gates, dtypes=(fix.dtype,), passes=(fix.pass_,))
    space = Space("linear_attention", narrow, "cpu", Budget(size, steps, steps, elements, batch))
    examiner = ThisProcess(FuzzBench(device, "", Settings(), NO_CEILINGS, entry=entry), selection, Path())
    session = UntilFault(examiner, [space], fix.seed, Goal(None, EXAMPLES))
    faults = session.run()
    print(f"  {session.tally}")
    for fault in faults:
        print(f"  found: {fault}")
    return 0 if faults else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
