"""The pytest plugin: tests marked with `@ranks` run on the standing pool.

It is found by itself where kadril is installed. Fixtures: `rank_pool`, `no_leaks`, and `world` for
tests marked with `@ranks`. Option `--require-mpi` (ini: `require_mpi`) turns the skip of tests
whose MPI is not installed into a failure, for machines that must have it. `--over tiered` runs
tests that ask for shared memory over another transport instead, and no others. What a test needs
shared memory for is the reason in its mark, `@pytest.mark.shared_memory("reason")`: there it is
skipped.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kadril.testing.decorator import RanksOptions, ranks_options
from kadril.testing.messages import WorldKey

if TYPE_CHECKING:
    from kadril.testing.pool import RankPool

__all__: list[str] = []


@dataclasses.dataclass(frozen=True)
class WorldRequest:
    """Stands for the world of a test in the session, which has none itself."""

    key: WorldKey
    timeout: float


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--require-mpi` and `--over`."""
    text = "fail, rather than skip, tests whose MPI is not installed"
    parser.getgroup("kadril").addoption("--require-mpi", action="store_true", help=text)
    over = "run tests of shared memory over this transport instead, and no others"
    parser.getgroup("kadril").addoption("--over", default="", metavar="TRANSPORT", help=over)
    parser.addini("require_mpi", text, type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    text = "shared_memory(reason): skipped where --over asks for a transport that has none"
    config.addinivalue_line("markers", text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each size and transport."""
    asked = ranks_options(metafunc.function)
    if asked is None:
        return
    options = tuple(sorted(asked.options.items()))
    wanted = [
        WorldRequest(WorldKey(transport, size, options), asked.timeout)
        for size in asked.sizes
        for transport in transports_of(asked, metafunc.config)
    ]
    names = [f"{one.key.size}-{one.key.transport}" for one in wanted]
    metafunc.parametrize("world", wanted, ids=names, indirect=True)


def transports_of(asked: RanksOptions, config: pytest.Config) -> tuple[str, ...]:
    """The transports that a test runs on."""
    over: str = config.getoption("--over")
    return (over,) if over and "shm" in asked.transports else asked.transports


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--over`, leave out tests that do not run over it, and skip those that cannot."""
    over: str = config.getoption("--over")
    if not over:
        return
    runs: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        wanted = None if callspec is None else callspec.params.get("world")
        asked = ranks_options(getattr(item, "function", None))
        is_over = isinstance(wanted, WorldRequest) and wanted.key.transport == over
        (runs if is_over and asked and "shm" in asked.transports else left_out).append(item)
        for mark in item.iter_markers("shared_memory"):
            item.add_marker(pytest.mark.skip(reason=f"shared memory: {mark.args[0]}"))
    items[:] = runs
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def rank_pool(request: pytest.FixtureRequest) -> RankPool:
    """The standing pool: `rank_pool.run(2, function, *arguments)` calls a function on two ranks."""
    from kadril.testing.pool import current_pool

    pool = current_pool()
    pool.root = request.config.rootpath
    pool.inherit_output = request.config.getoption("capture") == "no"
    for item in request.session.items:
        asked = ranks_options(getattr(item, "function", None))
        if asked is not None:
            for transport in transports_of(asked, request.config):
                pool.expect(transport, max(asked.sizes))
    return pool


@pytest.fixture
def world(request: pytest.FixtureRequest, rank_pool: RankPool) -> WorldRequest:
    """The world of a test marked with `@ranks`."""
    from kadril.testing.pool import Unavailable

    wanted = getattr(request, "param", None)
    if not isinstance(wanted, WorldRequest):
        pytest.fail(
            "a test gets its `world` from @kadril.testing.ranks(...), which is missing",
            pytrace=False,
        )
    try:
        rank_pool.worker_pool(wanted.key.transport)
    except Unavailable as error:
        if request.config.getoption("--require-mpi") or request.config.getini("require_mpi"):
            pytest.fail(f"--require-mpi: {error}", pytrace=False)
        pytest.skip(str(error))
    return wanted


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Run the body of a test on ranks, in place of the call that pytest would make."""
    wanted = pyfuncitem.funcargs.get("world")
    if not isinstance(wanted, WorldRequest):
        return None
    from kadril.testing.failure import RanksFailed
    from kadril.testing.pool import current_pool, pack, results_of
    from kadril.testing.target import locate

    names = inspect.signature(pyfuncitem.obj).parameters
    keywords = {name: pyfuncitem.funcargs[name] for name in names if name != "world"}
    failure = None
    try:
        target, payload = locate(pyfuncitem.function), pack((), keywords)
    except TypeError as error:
        failure = str(error)
    if failure is not None:  # outside of the handler, so that it is not shown twice
        pytest.fail(failure, pytrace=False)
    reports = current_pool().call(wanted.key, target, payload, wanted.timeout)
    for report in reports:
        if report.output:
            pyfuncitem.add_report_section("call", f"output of rank {report.rank}", report.output)
    try:
        results_of(reports)
    except RanksFailed as error:
        failure = str(error)
    if failure is not None:
        pytest.fail(failure, pytrace=False)
    return True


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a process, descriptor, thread, segment or file behind."""
    from kadril.testing.leaks import no_leaks as check

    with check():
        yield


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """End the ranks."""
    from kadril.testing import shutdown

    shutdown()
