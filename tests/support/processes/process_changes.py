"""Changes that a backend could leave in its process, and what honest libraries do, as Python statements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """Statements that change a process and put it back, and the words in which the change is named."""

    change: str
    restore: str
    words: str


MODE = """
class Twice(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))
mode = Twice()
mode.__enter__()
"""
DISPATCH_MODE = """
from torch.utils._python_dispatch import TorchDispatchMode
class Lazy(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))
mode = Lazy()
mode.__enter__()
"""
LEAVE = "mode.__exit__(None, None, None)"
HOOK = "hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)"
ENTRY = """
from ssmperf import registry
from ssmperf.engine.registry import tables
entry = tables.entries['recurrence']['scan']
cost = entry.cost
"""
BATCHED = "kernel = torch.library.Library('aten', 'IMPL'); kernel.impl('sin', torch.cos, 'CPU')"
CLOSED = "import ssmperf.engine.measure.statistics as s; kept = s.summarise.__code__"
# A child that has started its command when it prints a line: a busy machine takes its time over that.
CHILD = """
child = subprocess.Popen(['sh', '-c', '{}'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
"""
KILL = "child.kill(); child.communicate()"

CHANGES = {
    "function mode": Change(MODE, LEAVE, "torch's function mode Twice is on"),
    "dispatch mode": Change(DISPATCH_MODE, LEAVE, "torch's dispatch mode Lazy is on"),
    "transform": Change(
        "torch._C._functorch._vmap_increment_nesting(2, 'error')",
        "torch._C._functorch._vmap_decrement_nesting()",
        "the level of torch.func's transforms was changed",
    ),
    "clock": Change(
        "old = time.perf_counter; time.perf_counter = lambda: old() / 2",
        "time.perf_counter = old",
        "time.perf_counter was replaced",
    ),
    "sleep": Change(
        "old = time.sleep; time.sleep = lambda s: None",
        "time.sleep = old",
        "time.sleep was replaced",
    ),
    "event": Change(
        "old = torch.cuda.Event.elapsed_time; torch.cuda.Event.elapsed_time = lambda *_: 0.0",
        "torch.cuda.Event.elapsed_time = old",
        "torch.cuda.Event.elapsed_time was replaced",
    ),
    "synchronisation": Change(
        "old = torch.cuda.synchronize; torch.cuda.synchronize = lambda *_: None",
        "torch.cuda.synchronize = old",
        "torch.cuda.synchronize was replaced",
    ),
    "gradient": Change(
        "old = torch.autograd.grad; torch.autograd.grad = lambda *_: None",
        "torch.autograd.grad = old",
        "torch.autograd.grad was replaced",
    ),
    "code of a gradient": Change(
        "old = torch.autograd.grad.__code__; torch.autograd.grad.__code__ = noop.__code__",
        "torch.autograd.grad.__code__ = old",
        "the code of torch.autograd.grad was replaced",
    ),
    "operator": Change(
        "old = torch.exp; torch.exp = lambda x: x", "torch.exp = old", "torch.exp was replaced"
    ),
    "method": Change(
        "torch.Tensor.mul_ = lambda *_: None",
        "del torch.Tensor.mul_",
        "torch.Tensor.mul_ hides the former mul_",
    ),
    "builtin": Change(
        "import builtins; old = builtins.max; builtins.max = min",
        "builtins.max = old",
        "builtins.max was replaced",
    ),
    "hidden builtin": Change(
        "import ssmperf.engine.measure.clocks as c; c.max = min",
        "del c.max",
        "ssmperf.engine.measure.clocks.max hides the former max",
    ),
    "judge": Change(
        "import ssmperf.engine.judge.verdict as v; old = v.judge_call; v.judge_call = lambda *_: None",
        "v.judge_call = old",
        "ssmperf.engine.judge.verdict.judge_call was replaced",
    ),
    "method of the suite": Change(
        "import ssmperf.engine.measure.clocks as c; old = c.WallClock.time; "
        "c.WallClock.time = lambda *_: 0.0",
        "c.WallClock.time = old",
        "ssmperf.engine.measure.clocks.WallClock.time was replaced",
    ),
    "code of the suite": Change(
        f"{CLOSED}; s.summarise.__code__ = noop.__code__",
        "s.summarise.__code__ = kept",
        "the code of ssmperf.engine.measure.statistics.summarise was replaced",
    ),
    "constant of the suite": Change(
        "import ssmperf.engine.measure.clocks as c; old = c.RESOLUTION; c.RESOLUTION = 1.0",
        "c.RESOLUTION = old",
        "ssmperf.engine.measure.clocks.RESOLUTION was replaced",
    ),
    "module": Change(
        "old = sys.modules['time']; sys.modules['time'] = types.ModuleType('time')",
        "sys.modules['time'] = old",
        "the module time was replaced or removed",
    ),
    "declaration": Change(
        f"{ENTRY}object.__setattr__(entry, 'cost', print)",
        "object.__setattr__(entry, 'cost', cost)",
        "the recurrence scan was changed after it was registered",
    ),
    "registration": Change(
        f"{ENTRY}del tables.entries['recurrence']['scan']",
        "tables.entries['recurrence']['scan'] = entry",
        "the recurrence scan is registered no more",
    ),
}

# Changes by honest libraries; none of them may be named.
HONEST = {
    "nothing": "pass",
    "a module that is loaded later": "import json.tool, ssmperf.suites, colorsys",
    "random numbers": "torch.manual_seed(1); torch.rand(3)",
    "a backward pass": "x = torch.ones(3, requires_grad=True); (x * x).sum().backward()",
    "a context": "with torch.no_grad(), torch.autocast('cpu', torch.bfloat16), torch.inference_mode(): pass",
    "a wrap by the compiler": "import torch._dynamo.mutation_guard as m; m.install_generation_tagging_init()",
    "a registration": "from ssmperf import registry; registry.backends('rnn')",
}
