"""Changes that a backend could leave in its process, and what honest libraries do, as Python statements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """Statements that change a process and put it back, and the words in which the change is named."""

    change: str
    restore: str
    words: str
    wrong: bool = False


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
    "default dtype": Change(
        "torch.set_default_dtype(torch.float64)",
        "torch.set_default_dtype(torch.float32)",
        "the default dtype is torch.float64, not torch.float32",
    ),
    "default device": Change(
        "torch.set_default_device('meta')",
        "torch.set_default_device(None)",
        "the default device is meta, not cpu",
    ),
    "threads": Change(
        "threads = torch.get_num_threads(); torch.set_num_threads(threads + 1)",
        "torch.set_num_threads(threads)",
        "the number of torch's threads is",
    ),
    "gradients": Change(
        "torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)", "the recording of gradients is off"
    ),
    "inference mode": Change(
        "mode = torch.inference_mode(); mode.__enter__()", LEAVE, "the inference mode is on"
    ),
    "anomaly mode": Change(
        "torch.autograd.set_detect_anomaly(True)",
        "torch.autograd.set_detect_anomaly(False)",
        "the anomaly mode is on",
    ),
    "saved tensors": Change(
        "hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x); hooks.__enter__()",
        "hooks.__exit__(None, None, None)",
        "the pair of default hooks on saved tensors changed",
    ),
    "no saved tensors": Change(
        "hooks = torch.autograd.graph.disable_saved_tensors_hooks('no'); hooks.__enter__()",
        "hooks.__exit__(None, None, None)",
        "the use of hooks on saved tensors is off",
    ),
    "module hooks": Change(HOOK, "hook.remove()", "torch.nn's global forward_hooks changed"),
    "determinism": Change(
        "torch.use_deterministic_algorithms(True)",
        "torch.use_deterministic_algorithms(False)",
        "the insistence on deterministic algorithms is on",
    ),
    "precision": Change(
        "torch.set_float32_matmul_precision('medium')",
        "torch.set_float32_matmul_precision('highest')",
        "the precision of float32 products is medium, not highest",
    ),
    "autocast": Change(
        "torch.set_autocast_enabled('cpu', True)",
        "torch.set_autocast_enabled('cpu', False)",
        "autocast on cpu is on",
    ),
    "cudnn": Change(
        "torch.backends.cudnn.benchmark = True",
        "torch.backends.cudnn.benchmark = False",
        "torch's switch cudnn.benchmark is on",
    ),
    "attention": Change(
        "torch.backends.cuda.enable_flash_sdp(False)",
        "torch.backends.cuda.enable_flash_sdp(True)",
        "torch's switch flash attention is off",
    ),
    "tf32": Change(
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cuda.matmul.allow_tf32 = False",
        "torch's switch cuda.matmul.allow_tf32 is on",
    ),
    "denormals": Change(
        "torch.set_flush_denormal(True)",
        "torch.set_flush_denormal(False)",
        "the arithmetic's flushing of denormals is on",
    ),
    "rounding": Change(
        "import ctypes; m = ctypes.CDLL('libm.so.6'); old = m.fegetround(); m.fesetround(0x800)",
        "m.fesetround(old)",
        "the arithmetic's rounding upwards is on",
    ),
    "trace": Change(
        "sys.settrace(lambda *_: None)", "sys.settrace(None)", "the function of sys.settrace changed"
    ),
    "profile": Change(
        "sys.setprofile(lambda *_: None)", "sys.setprofile(None)", "the function of sys.setprofile changed"
    ),
    "threads' trace": Change(
        "threading.settrace(lambda *_: None)",
        "threading.settrace(None)",
        "the function of threading.settrace changed",
    ),
    "collector": Change("gc.disable()", "gc.enable()", "the garbage collector's automatic mode is off"),
    "collector's thresholds": Change(
        "old = gc.get_threshold(); gc.set_threshold(1)",
        "gc.set_threshold(*old)",
        "the garbage collector's thresholds is (1,",
    ),
    "collector's callbacks": Change(
        "gc.callbacks.append(noop)",
        "gc.callbacks.remove(noop)",
        "the garbage collector's callbacks changed",
    ),
    "niceness": Change(
        "old = os.getpriority(0, 0); os.setpriority(0, 0, old + 1)",
        "os.setpriority(0, 0, old)",
        "the scheduling's niceness is",
    ),
    "cores": Change(
        "old = os.sched_getaffinity(0); os.sched_setaffinity(0, {max(old)})",
        "os.sched_setaffinity(0, old)",
        "the scheduling's cores is (",
    ),
    "policy": Change(
        "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
        "os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))",
        "the scheduling's policy is",
    ),
    "limit": Change(
        "c = resource.RLIMIT_CORE; old = resource.getrlimit(c); resource.setrlimit(c, (1, old[1]))",
        "resource.setrlimit(c, old)",
        "the limit RLIMIT_CORE is (1, ",
    ),
    "umask": Change("old = os.umask(0o777)", "os.umask(old)", "the process's umask is 0777, not"),
    "locale": Change(
        "old = locale.setlocale(locale.LC_ALL); locale.setlocale(locale.LC_ALL, OTHER_LOCALE[old])",
        "locale.setlocale(locale.LC_ALL, old)",
        "the locale is",
    ),
    "folder": Change(
        "old = os.getcwd(); os.chdir('/proc')", "os.chdir(old)", "the working folder is /proc, not"
    ),
    "variable": Change(
        "os.environ['OMP_WAIT_POLICY'] = 'secret'",
        "del os.environ['OMP_WAIT_POLICY']",
        "the environment variable OMP_WAIT_POLICY was added",
    ),
    "changed variable": Change(
        "old = os.environ['PATH']; os.environ['PATH'] = 'secret'",
        "os.environ['PATH'] = old",
        "the environment variable PATH changed",
    ),
    "signal": Change(
        "old = signal.signal(signal.SIGUSR1, lambda *_: None)",
        "signal.signal(signal.SIGUSR1, old)",
        "the handler of SIGUSR1 changed",
    ),
    "blocked signal": Change(
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})",
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})",
        "the process's blocked signals is",
    ),
    "timer": Change(
        "signal.setitimer(signal.ITIMER_VIRTUAL, 3600)",
        "signal.setitimer(signal.ITIMER_VIRTUAL, 0)",
        "the timer ITIMER_VIRTUAL is on",
    ),
    "finder": Change(
        "sys.meta_path.insert(0, object())", "del sys.meta_path[0]", "the list sys.meta_path changed"
    ),
    "import path": Change("sys.path.insert(0, '/proc')", "del sys.path[0]", "the list sys.path changed"),
    "hook of paths": Change(
        "old = sys.path_hooks.pop()", "sys.path_hooks.append(old)", "the list sys.path_hooks"
    ),
    "output": Change(
        "old = sys.stdout; sys.stdout = io.StringIO()", "sys.stdout = old", "Python's sys.stdout changed"
    ),
    "thread": Change(
        "stop = threading.Event(); thread = threading.Thread(target=stop.wait, name='idle'); thread.start()",
        "stop.set(); thread.join()",
        "the thread 'idle' was left behind",
    ),
    "busy thread": Change(
        "stop = []; thread = threading.Thread(target=spin, args=(stop,)); thread.start()",
        "stop.append(1); thread.join()",
        "a thread keeps running (",
    ),
    "process": Change(
        CHILD.format("echo; read answer"),
        KILL,
        "the process 'sh -c echo; read answer' was left behind",
    ),
    "busy process": Change(
        CHILD.format("echo; while :; do :; done"),
        KILL,
        "a thread keeps running (",
    ),
    "function mode": Change(MODE, LEAVE, "torch's function mode Twice is on", wrong=True),
    "dispatch mode": Change(DISPATCH_MODE, LEAVE, "torch's dispatch mode Lazy is on", wrong=True),
    "transform": Change(
        "torch._C._functorch._vmap_increment_nesting(2, 'error')",
        "torch._C._functorch._vmap_decrement_nesting()",
        "the level of torch.func's transforms is 1, not None",
        wrong=True,
    ),
    "kernel": Change(
        BATCHED, "kernel._destroy()", "the replacement of torch's kernel aten/sin/CPU is on", True
    ),
    "clock": Change(
        "old = time.perf_counter; time.perf_counter = lambda: old() / 2",
        "time.perf_counter = old",
        "time.perf_counter was replaced",
        wrong=True,
    ),
    "sleep": Change(
        "old = time.sleep; time.sleep = lambda s: None",
        "time.sleep = old",
        "time.sleep was replaced",
        wrong=True,
    ),
    "event": Change(
        "old = torch.cuda.Event.elapsed_time; torch.cuda.Event.elapsed_time = lambda *_: 0.0",
        "torch.cuda.Event.elapsed_time = old",
        "torch.cuda.Event.elapsed_time was replaced",
        wrong=True,
    ),
    "synchronisation": Change(
        "old = torch.cuda.synchronize; torch.cuda.synchronize = lambda *_: None",
        "torch.cuda.synchronize = old",
        "torch.cuda.synchronize was replaced",
        wrong=True,
    ),
    "gradient": Change(
        "old = torch.autograd.grad; torch.autograd.grad = lambda *_: None",
        "torch.autograd.grad = old",
        "torch.autograd.grad was replaced",
        wrong=True,
    ),
    "code of a gradient": Change(
        "old = torch.autograd.grad.__code__; torch.autograd.grad.__code__ = noop.__code__",
        "torch.autograd.grad.__code__ = old",
        "the code of torch.autograd.grad was replaced",
        wrong=True,
    ),
    "operator": Change(
        "old = torch.exp; torch.exp = lambda x: x", "torch.exp = old", "torch.exp was replaced", wrong=True
    ),
    "method": Change(
        "torch.Tensor.mul_ = lambda *_: None",
        "del torch.Tensor.mul_",
        "torch.Tensor.mul_ hides the former mul_",
        wrong=True,
    ),
    "unused function": Change(
        "old = torch.hann_window; torch.hann_window = lambda *_: None",
        "torch.hann_window = old",
        "torch.hann_window was replaced",
    ),
    "builtin": Change(
        "import builtins; old = builtins.max; builtins.max = min",
        "builtins.max = old",
        "builtins.max was replaced",
        wrong=True,
    ),
    "hidden builtin": Change(
        "import ssmperf.engine.measure.clocks as c; c.max = min",
        "del c.max",
        "ssmperf.engine.measure.clocks.max hides the former max",
        wrong=True,
    ),
    "judge": Change(
        "import ssmperf.engine.judge.verdict as v; old = v.judge_call; v.judge_call = lambda *_: None",
        "v.judge_call = old",
        "ssmperf.engine.judge.verdict.judge_call was replaced",
        wrong=True,
    ),
    "method of the suite": Change(
        "import ssmperf.engine.measure.clocks as c; old = c.WallClock.time; "
        "c.WallClock.time = lambda *_: 0.0",
        "c.WallClock.time = old",
        "ssmperf.engine.measure.clocks.WallClock.time was replaced",
        wrong=True,
    ),
    "code of the suite": Change(
        f"{CLOSED}; s.summarise.__code__ = noop.__code__",
        "s.summarise.__code__ = kept",
        "the code of ssmperf.engine.measure.statistics.summarise was replaced",
        wrong=True,
    ),
    "constant of the suite": Change(
        "import ssmperf.engine.measure.clocks as c; old = c.RESOLUTION; c.RESOLUTION = 1.0",
        "c.RESOLUTION = old",
        "ssmperf.engine.measure.clocks.RESOLUTION was replaced",
        wrong=True,
    ),
    "module": Change(
        "old = sys.modules['time']; sys.modules['time'] = types.ModuleType('time')",
        "sys.modules['time'] = old",
        "the module time was replaced or removed",
        wrong=True,
    ),
    "declaration": Change(
        f"{ENTRY}object.__setattr__(entry, 'cost', print)",
        "object.__setattr__(entry, 'cost', cost)",
        "the recurrence scan was changed after it was registered",
        wrong=True,
    ),
    "registration": Change(
        f"{ENTRY}del tables.entries['recurrence']['scan']",
        "tables.entries['recurrence']['scan'] = entry",
        "the recurrence scan is registered no more",
        wrong=True,
    ),
}

# Changes by honest libraries; none of them may be named.
HONEST = {
    "nothing": "pass",
    "a module that is loaded later": "import json.tool, ssmperf.suites, colorsys",
    "a pool of threads": "pool = concurrent.futures.ThreadPoolExecutor(1); pool.submit(int).result()",
    "a pool that ends its work": "p = concurrent.futures.ThreadPoolExecutor(1); p.submit(spin_for, 0.4)",
    "a path at the end": "sys.path.append('/proc'); sys.meta_path.append(object())",
    "the compiler's variable": "os.environ['TORCHINDUCTOR_CACHE_DIR'] = '/tmp'",
    "random numbers": "torch.manual_seed(1); torch.rand(3)",
    "a backward pass": "x = torch.ones(3, requires_grad=True); (x * x).sum().backward()",
    "a context": "with torch.no_grad(), torch.autocast('cpu', torch.bfloat16), torch.inference_mode(): pass",
    "a thread that has ended": "thread = threading.Thread(target=int); thread.start(); thread.join()",
    "a process that has ended": "subprocess.run(['true'])",
    "a wrap by the compiler": "import torch._dynamo.mutation_guard as m; m.install_generation_tagging_init()",
    "a registration": "from ssmperf import registry; registry.backends('rnn')",
}
