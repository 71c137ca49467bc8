"""The command line that repeats one case."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ssmperf.cases.case import Case, axes


def command_that_repeats(case: Case, options: Sequence[str] = ()) -> str:
    """Compose the command line that repeats a case; most options at their default are left out.

    options: further options of the run, such as the preset, which sets how long a case is measured.
    """
    words = ["ssmperf", "run", "--suite", case.suite]
    words += ["--models", case.owner, "--backends", case.backend]
    for letter, size in case.shape.items():
        words += ["--axis", f"{letter}={size}"]
    words += ["--device", case.device]
    for name, declared in axes().items():
        value = getattr(case, name)
        # the gates of a float64 case are float64, whatever its gate dtype says
        ignored = name == "gate_dtype" and case.dtype == "float64"
        if declared.help and (declared.always_repeated or (value != declared.default and not ignored)):
            words += [declared.option, str(value)]
    return shlex.join([*words, *options])
