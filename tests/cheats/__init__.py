"""Cheats: backends that would win a benchmark without doing the work, by class of trick.

Each is a backend `cheat_<name>` in a plug-in file of this folder. `twins.py` has the honest computation under
names that sort before the cheats, and a neighbour for each cheat that may harm what runs after it. `run.py`
shows what the harness says of each. A user would load one so:

    ssmperf run --suite throughput --models scan --regime sigmoid/data \\
        --plugin tests/cheats/caches.py --backends cheat_cache_by_bytes,sequential
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HONEST_TIME, WRONG, NEIGHBOUR = "honest time", "wrong", "neighbour"
ONE_REGIME = ("--regime", "sigmoid/data", "--pass")
SIZES = ("--axis", "T=512", "--dtype", "float32")
FORWARD = ("throughput", *SIZES, *ONE_REGIME, "forward")
GRADIENTS = ("throughput", "--axis", "T=256", "--dtype", "float32", *ONE_REGIME, "backward,forward_backward")
IN_FLOAT32 = ("throughput", "--axis", "T=64", "--dtype", "float32", "--pass", "forward")
REGIMES = ("throughput", "--axis", "T=64", "--dtype", "bfloat16", "--pass", "forward")  # under every regime
ON_GPU = ("throughput", "--axis", "B=8", "--axis", "T=512", "--axis", "C=256", *ONE_REGIME, "forward")
LARGE = ("throughput", "--axis", "B=8", "--axis", "T=1024", "--axis", "C=1024", *ONE_REGIME, "forward")
BACKWARD = {"twin": "alone_node", "options": GRADIENTS, "pass_": "backward"}
MEMORY = ("memory", *SIZES, *ONE_REGIME, "forward")


@dataclass(frozen=True, slots=True)
class Cheat:
    """One cheat, and what must become of it.

    name: that of its backend, behind `cheat_`. kind: the class of trick. file: its plug-in of this folder.
    must: HONEST_TIME: its status is not ok, or its time is one that its twin reaches.
        WRONG: its status is not ok in at least one of its cases. NEIGHBOUR: only what `neighbour` says.
    twin: the backend that does the same without cheating.
    options: the suite, and options of the command line.
    pass_: the pass in which it cheats, among those of its options.
    neighbour: whether an honest backend runs right after it, and must have its usual status and time.
    alone: whether it needs a run of its own, since loading it changes every process.
    also: further backends of the same run. value: the number by which it is compared with its twin.
    runs: how many runs, one after another, it needs; the last one counts.
    beyond: why values that never repeat, checks of every timed output, a judge in its own process, a process
        per backend and snapshots of it may not suffice; None if one of these stops it.
    """

    name: str
    kind: str
    file: str
    must: str = HONEST_TIME
    twin: str = "alone_loop"
    device: str = "cpu"
    options: tuple[str, ...] = FORWARD
    pass_: str | None = None
    neighbour: bool = False
    alone: bool = False
    also: tuple[str, ...] = ()
    value: str = "latency_s"
    runs: int = 1
    beyond: str | None = None


def of_file(file: str, kind: str, *names: str, **fields: Any) -> tuple[Cheat, ...]:
    """List cheats of one file and class that differ in their names."""
    return tuple(Cheat(name, kind, file, **fields) for name in names)


def on_gpu(kind: str, *names: str, **fields: Any) -> tuple[Cheat, ...]:
    return of_file("devices.py", kind, *names, **{"device": "cuda", "options": ON_GPU, **fields})


TABLE = (
    *of_file("caches.py", "content cache", "cache_by_bytes", "cache_by_samples", "cache_by_checksum"),
    *of_file(
        "caches.py",
        "content cache",
        "combines_linearly",
        beyond="it finds the secret coefficients of a linear combination from a few elements of the operand",
    ),
    *of_file(
        "caches.py",
        "cache by pointer",
        "cache_by_pointer",
        "cache_by_pointer_and_element",
        "cache_by_version",
    ),
    *of_file("caches.py", "stale output", "stale_rescaled"),
    *of_file("omissions.py", "some of the calls", "two_of_five", "two_of_five_by_stack"),
    *of_file(
        "omissions.py", "final state left out", "stateless_by_count", "narrow_state_by_count", must=WRONG
    ),
    *of_file("omissions.py", "empty tensors", "empty_by_stack", "broadcast_by_stack"),
    *of_file(
        "omissions.py",
        "part of the work",
        *(
            "part_by_stack",
            "part_by_caller",
            "part_by_count",
            "part_by_poison",
            "part_by_gap",
            "part_by_grad",
        ),
    ),
    *of_file(
        "omissions.py",
        "part of the work",
        "part_by_requires_grad",
        options=GRADIENTS,
        pass_="forward_backward",
    ),
    *of_file("lazy.py", "lazy result", "dispatch_mode", neighbour=True),
    *of_file(
        "lazy.py",
        "lazy result",
        "replaced_kernels",
        neighbour=True,
        beyond="the work is done by the operation that checks the output; no mode is on the stack",
    ),
    *of_file("lazy.py", "side thread", "finishes_later"),
    *of_file("lazy.py", "side thread", "works_ahead"),
    *of_file("known.py", "answers of an earlier run", "answers_on_disk", runs=2),
    *of_file("known.py", "public seed", "drawn_ahead"),
    *of_file("known.py", "the judge's memory", "finds_reference", "asks_judging"),
    *of_file(
        "prepared.py",
        "work outside the native call",
        *("all_in_prepare", "most_in_prepare", "all_in_finish", "kept_by_prepare"),
        twin="alone_native",
    ),
    *of_file(
        "clocks.py",
        "patched clock",
        "patched_time_module",
        "patched_clock",
        "patched_statistics",
        neighbour=True,
    ),
    *of_file(
        "clocks.py",
        "patched clock",
        "clock_patched_late",
        neighbour=True,
        beyond="a snapshot after the first call comes too early",
    ),
    *of_file(
        "clocks.py",
        "patched clock",
        "patched_record",
        neighbour=True,
        beyond="samples and medians agree with each other; only a window measured elsewhere contradicts",
    ),
    *of_file(
        "judges.py",
        "widened tolerance",
        *("wider_bands", "wider_tolerance", "wider_bound", "blurred_reference"),
    ),
    *of_file("judges.py", "patched judge", "patched_comparison", "patched_judging", neighbour=True),
    *of_file("judges.py", "forged answer", "forged_answer", "writes_for_the_next", neighbour=True),
    *of_file(
        "patched_driver.py",
        "patched driver",
        "patched_driver",
        alone=True,
        beyond="it changes what reads the records and times calls beside the worker, and no worker",
    ),
    *of_file(
        "graphs.py",
        "work in the graph",
        *("gradient_once", "gradient_rescaled", "gradient_in_forward"),
        twin="alone_node",
        options=GRADIENTS,
        pass_="backward",
    ),
    *of_file(
        "graphs.py",
        "work in the graph",
        "gradient_combines",
        twin="alone_node",
        options=GRADIENTS,
        pass_="backward",
        beyond="it finds the secret coefficients of a linear combination from a few elements of the gradient",
    ),
    *of_file("precision.py", "cheap precision", "int8_inside", must=WRONG, options=REGIMES),
    # bfloat16 has no digits for what these gates add
    *of_file("precision.py", "cheap precision", "drops_small_gates", must=WRONG, options=IN_FLOAT32),
    *of_file(
        "leftovers.py", "busy neighbour", "busy_thread", "busy_children", must=NEIGHBOUR, neighbour=True
    ),
    *of_file(
        "leftovers.py",
        "busy neighbour",
        "orphan",
        must=NEIGHBOUR,
        neighbour=True,
        beyond="it is no child of the worker, and a snapshot of the process does not show it",
    ),
    *of_file(
        "leftovers.py",
        "changed process",
        *("niceness", "affinity", "denormals", "garbage", "environment", "anomaly", "module_hooks"),
        "profile_function",
        must=NEIGHBOUR,
        neighbour=True,
    ),
    *of_file("answers.py", "answers", "invents_late_mixtures"),
    *of_file("answers.py", "answers", "gradient_invented", **BACKWARD),
    *of_file("answers.py", "reuse", "rolls_kept_gates", twin="alone_gates"),
    *of_file("answers.py", "hidden work", "backward_in_the_graph", **{**BACKWARD, "twin": "alone_preparing"}),
    *of_file("answers.py", "ties", "sleeps_in_half"),
    *of_file("lazy.py", "laziness", "mode_between", "lazy_when_timed"),
    *of_file("reporters.py", "clock", "clock_of_the_instance", "clock_and_cache", "list_of_samples"),
    *of_file("reporters.py", "judge", "answers_for_the_client"),
    *of_file("bribes.py", "judge", "asks_for_another_function"),
    *of_file("bribes.py", "judge", "sibling_of_a_definition", also=("bribing_definition",)),
    *of_file("reporters.py", "what the worker reports", "environment_of_its_own"),
    *of_file(
        "edited_environment.py",
        "what the worker reports",
        *("edits_ceilings", "edits_calibration"),
        must=NEIGHBOUR,
        neighbour=True,
        alone=True,
    ),
    *of_file(
        "driver_variables.py",
        "the driver",
        *("variables_of_the_driver", "niceness_of_the_driver"),
        must=NEIGHBOUR,
        neighbour=True,
        alone=True,
    ),
    *of_file("reporters.py", "forks", "small_in_a_fork", options=MEMORY, value="peak_bytes"),
    *on_gpu("side stream", "side_stream", "computed_on_the_cpu"),
    *on_gpu("content cache", "kept_on_the_device", "cached_on_a_gpu"),
    *on_gpu("stale output", "replays_old_inputs"),
    *on_gpu("warm cache", "warms_the_cache", twin="alone_triton", options=LARGE),
    *on_gpu("the judge's memory", "freed_memory"),
    *on_gpu("work before the clock", "works_before_the_events", "works_in_the_lead"),
    *on_gpu("patched clock", "patched_events", neighbour=True),
    *on_gpu("empty tensors", "empty_on_a_gpu"),
    *on_gpu("laziness", "mode_on_a_gpu", "lazy_on_a_gpu"),
    *on_gpu("clock", "events_of_the_instance"),
    *on_gpu("reuse", "rolls_gates_on_a_gpu", twin="alone_gates"),
)
