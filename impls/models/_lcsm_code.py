"""The codes of the LCSM grid: what `lcsm:e-o-s-a[:tau]` means, and what each oscillation is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ssmperf.authoring import UsageError

FORM = re.compile(r"lcsm:([01])-(\d+|ssm)(f?)-([01])-(\d+)(?::(\d+(?:\.\d+)?))?")
VALID = (
    "lcsm:e-o-s-a[:tau] with e, s: 0 (parameters) or 1 (from x); o: 0 to 11, or ssm, or 0f, 4f, 5f (0, 4, 5 "
    "not learned); a: 0 to 7; tau > 0, 16 by default; o = 11 and o = ssm need e = s = 1"
)
ACTIVATIONS = 8  # number of codes of e's and s's activation
TEMPERATURE = 16.0

# what each oscillation makes of x: (key factor, value factor), each "x" (a projection of x), "p" (parameters)
# or None, and whether a k×d parameter multiplies
Factor = str | None
FACTORS: dict[str, tuple[Factor, Factor]] = {
    "0": (None, None), "1": ("x", "x"), "2": (None, "x"), "3": ("x", None), "4": ("p", None),
    "5": (None, "p"), "6": ("x", None), "7": (None, "x"), "8": ("p", "x"), "9": ("x", "p"),
    "10": (None, None), "11": (None, None), "ssm": (None, None),
}  # fmt: skip
WITH_MATRIX = ("0", "6", "7", "ssm")
CONSTANT = ("0", "4", "5")  # parameters alone, which start as slopes
INSEPARABLE = ("6", "7", "8", "9")  # the sigmoid is taken of a product
OF_MATRICES = {"0": "const", **dict.fromkeys(INSEPARABLE, "sigmoid"), "ssm": "exp"}
OF_OUTER_PRODUCTS = {"1": "both", "2": "value", "3": "key", "4": "const", "5": "value", "10": "none"}

# the rows of LCSM's Table 4, and the parameterisation of its Table 5
MEMBERS = (
    "lcsm:0-0-0-0", "lcsm:1-0-0-0", "lcsm:0-0-1-0", "lcsm:0-1-0-0", "lcsm:1-1-0-0", "lcsm:0-1-1-0",
    "lcsm:1-0-1-0", "lcsm:1-0f-1-0", *(f"lcsm:1-{o}-1-0" for o in range(1, 12)), "lcsm:1-ssm-1-0",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Code:
    """e and s: whether expand and shrink depend on x. o: oscillation. a: activation of e and s.

    fixed: whether an oscillation that is a parameter is not learned.
    """

    e: bool
    o: str
    s: bool
    a: int
    tau: float
    fixed: bool = False

    @classmethod
    def parse(cls, name: str) -> Code:
        """Read the code of a full name. Raises UsageError for anything but `VALID`."""
        match = FORM.fullmatch(name)
        if match is None:
            raise UsageError(f"{name!r} is no member of the LCSM grid (valid: {VALID})")
        e, o, fixed, s, a, tau = match.groups()
        code = cls(e == "1", o, s == "1", int(a), float(tau or TEMPERATURE), fixed == "f")
        wrong = (
            o not in FACTORS
            or code.a >= ACTIVATIONS
            or code.tau <= 0
            or (o in ("11", "ssm") and not (code.e and code.s))
            or (code.fixed and o not in CONSTANT)
        )
        if wrong:
            raise UsageError(f"{name!r} is no member of the LCSM grid (valid: {VALID})")
        return code

    @property
    def recurrence(self) -> str:
        """The recurrence: if e or s are k×d parameters, the memory is k·d channels, not an outer product."""
        if not (self.e and self.s):
            return "scan"
        return "selective_scan" if self.o in OF_MATRICES else "linear_attention"

    @property
    def gate(self) -> str:
        """The gate kind in that recurrence."""
        if self.recurrence == "scan":
            return "const" if self.o in (*CONSTANT, "10") else "data"
        if self.recurrence == "selective_scan":
            return OF_MATRICES[self.o]
        return "const_complex" if self.o == "11" else OF_OUTER_PRODUCTS[self.o]
