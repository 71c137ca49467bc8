"""The options, fixtures and hooks that pytest finds. Importing this module imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ssmperf.shell.pytest_plugin.recorder import SessionRecorder
    from ssmperf.shell.pytest_plugin.session import SsmperfSession

CLOCK = "ssmperf_clock(device=..., cache=...): which device and cache state `ssmperf_benchmark` measures."
XDIST = (
    "measuring is refused under pytest-xdist: the other workers would disturb the times. Run the tests that "
    "measure without -n (verifying works with it)"
)
NEEDS_BENCHMARK = "ssmperf_benchmark needs pytest-benchmark: pip install pytest-benchmark"
_RECORDER = pytest.StashKey["SessionRecorder"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ssmperf", "ssmperf: verify and time kernels")
    group.addoption(
        "--ssmperf-out",
        metavar="DIR",
        help="Folder of the run with all records. Default: a new one, runs/<time>-pytest.",
    )
    group.addoption(
        "--ssmperf-baseline",
        metavar="RUN",
        help="Compare the measured cases with this run, as `ssmperf check` does; fail if anything is slower.",
    )
    group.addoption(
        "--ssmperf-threshold",
        metavar="SHARE",
        default="5%",
        help="Largest relative change that counts as the same. Default: 5%%.",
    )
    group.addoption(
        "--ssmperf-unsure",
        choices=("fail", "pass"),
        default="fail",
        help="What a comparison does that finds nothing worse than cases it cannot tell. Default: fail.",
    )
    group.addoption(
        "--ssmperf-nonce",
        metavar="NONCE",
        help="Secret on which all values depend, as the command in a record has it. Default: a fresh one.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", CLOCK)
    asked = [name for name in ("out", "baseline", "nonce") if config.getoption(f"ssmperf_{name}") is not None]
    if asked and config.getoption("dist", "no") != "no":
        raise pytest.UsageError(f"--ssmperf-{asked[0]}: {XDIST}")
    if asked and not _is_worker(config):
        _recorder(config)  # which finds out now whether the options can be used
    if config.pluginmanager.hasplugin("benchmark"):
        from ssmperf.shell.pytest_plugin import benchmark

        config.pluginmanager.register(benchmark, "ssmperf-benchmark")
    else:
        config.pluginmanager.register(_WithoutBenchmark(), "ssmperf-benchmark")


@pytest.fixture
def ssmperf_session(request: pytest.FixtureRequest) -> SsmperfSession:
    """Verify kernels as `ssmperf.verify` does, and measure them into the run of this test session."""
    from ssmperf.shell.pytest_plugin.session import SsmperfSession

    recorder = None if _is_worker(request.config) else _recorder(request.config)
    return SsmperfSession(request.node.nodeid, recorder, XDIST)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.option.collectonly:  # nothing was meant to be measured
        return
    recorder = session.config.stash.get(_RECORDER, None)
    if recorder is not None and not recorder.finish() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    recorder = config.stash.get(_RECORDER, None)
    if recorder is not None and recorder.lines:
        terminalreporter.section("ssmperf")
        for line in recorder.lines:
            terminalreporter.write_line(line)


class _WithoutBenchmark:
    """Stands for the module `benchmark` where pytest-benchmark is not installed or not loaded."""

    @pytest.fixture
    def ssmperf_benchmark(self) -> None:
        """Time a function as `benchmark` of pytest-benchmark does, by ssmperf's clocks."""
        pytest.fail(NEEDS_BENCHMARK, pytrace=False)


def _is_worker(config: pytest.Config) -> bool:
    """Tell whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def _recorder(config: pytest.Config) -> SessionRecorder:
    """Get the session's recorder; the first call makes it.

    Raises:
        UsageError: an option has an illegal value, or a folder cannot be used.
    """
    if _RECORDER not in config.stash:
        from ssmperf.errors import SsmperfError
        from ssmperf.shell.pytest_plugin.recorder import SessionRecorder

        options = {name: config.getoption(f"ssmperf_{name}") for name in ("out", "baseline", "nonce")}
        try:
            config.stash[_RECORDER] = SessionRecorder(
                **options,
                threshold=config.getoption("ssmperf_threshold"),
                unsure=config.getoption("ssmperf_unsure"),
                argv=("pytest", *map(str, config.invocation_params.args)),
            )
        except SsmperfError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_RECORDER]
