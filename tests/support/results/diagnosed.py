"""A case with random sizes and operands, whose right results tests spoil to see the diagnosis."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ssmperf import Case, Shape, Status
from ssmperf.engine.diagnosis.explain import diagnosed, evidence_of
from ssmperf.engine.judge.answer import Answer
from ssmperf.engine.judge.reference import reference_of
from ssmperf.engine.judge.verdict import judge_answer
from ssmperf.engine.operands.dtypes import dtype_of
from ssmperf.engine.operands.subject import subject_of
from ssmperf.suitekit import Verdict, registry

Results = dict[str, Tensor]


class Setting:
    """Random operands of random sizes, their reference, and the results of a right backend.

    name: of the recurrence. sizes: sizes to use in place of random ones.
    """

    def __init__(self, seed: int, name: str = "scan", dtype: str = "float32", **sizes: int) -> None:
        self.random = random.Random(f"{name} {seed}")
        draw = self.random.randint
        letters = {"B": draw(2, 4), "T": draw(70, 150), **self._own(name)} | sizes
        source = "sigmoid/data" if name == "scan" else "sigmoid/key"
        self.case = Case(
            suite="correctness", recurrence=name, backend="sequential", shape=Shape(**letters), model=None,
            operand_source=source, dtype=dtype, device="cpu", pass_="forward_backward", seed=seed,
        )  # fmt: skip
        self.values = subject_of(self.case, "cpu").values(seed, with_state=True)
        self.definition = registry.recurrence(name).definition
        self.dtype = dtype_of(dtype)
        self.reference = reference_of(
            self.definition, self.values, length=letters["T"], dtype=self.dtype, gradients=True
        )

    def _own(self, name: str) -> dict[str, int]:
        draw = self.random.randint
        if name == "scan":
            return {"C": draw(3, 9)}
        return {"H": draw(2, 3), "K": (size := draw(3, 6)), "V": size}

    @property
    def T(self) -> int:
        return self.case.shape["T"]

    def right(self) -> Results:
        """Round the exact results as a right backend would."""
        exact = self.reference.exact
        operands = self.values.operands
        found = {"output": exact.output.to(self.dtype)}
        if exact.final_state is not None:
            found["final_state"] = exact.final_state.float()
        return found | {name: value.to(operands[name].dtype) for name, value in exact.gradients.items()}

    def verdict(self, results: Results) -> Verdict:
        answer = Answer(results)
        verdict = judge_answer(answer, self.reference, dtype=self.dtype)
        if verdict.status is Status.OK:
            return verdict
        evidence = evidence_of(self.case, self.definition, self.values)
        return diagnosed(verdict, answer, self.reference, self.case, evidence)

    def found(self, results: Results) -> dict[str, Any]:
        """Diagnose results of which exactly one object is wrong, and return its diagnosis."""
        verdict = self.verdict(results)
        (found,) = verdict.diagnosis
        assert str(verdict.reason).startswith(f"{found['object']}: ")
        assert str(verdict.reason).endswith(f": {found['text']}")
        return dict(found)

    def differentiated(self, function: Callable[..., tuple[Tensor, Tensor]]) -> Results:
        """Compute a function's results and gradients in the operands' precision, as a backend would."""
        leaves = {name: value.clone().requires_grad_() for name, value in self.values.tensors.items()}
        output, state = function(**{**self.values.operands, **leaves})
        assert self.values.grad_state is not None
        gradients = torch.autograd.grad(
            [output, state], list(leaves.values()), [self.values.grad_output, self.values.grad_state]
        )
        found = dict(zip(leaves, gradients, strict=True))
        return {"output": output.detach(), "final_state": state.detach(), **found}
