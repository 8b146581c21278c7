"""The package named `horovod`: helpers, exceptions, data loaders.

Imported by its long name here, so that `import horovod` stays what it is in this process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kadril.compat import compat_path, compat_variables, shadow
from kadril.compat.horovod_path import horovod
from kadril.compat.horovod_path.horovod.common import basics, elastic, exceptions, util
from kadril.compat.horovod_path.horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from kadril.compat.horovod_path.horovod.runner.common.util import hosts, timeout
from kadril.compat.horovod_path.horovod.runner.util import threads
from kadril.errors import ConfigError, KadrilError, MismatchError, PeerLost, Stalled


def test_version_and_run() -> None:
    assert horovod.__version__ == "0.28.1"
    assert horovod.run is horovod.runner.run


def test_exceptions() -> None:
    assert exceptions.HorovodInternalError is KadrilError
    for each in (MismatchError, PeerLost, Stalled):
        assert issubclass(each, exceptions.HorovodInternalError)
    error = exceptions.HorovodVersionMismatchError("torch", "2.9", "1.0")
    assert isinstance(error, ImportError)
    assert (error.name, error.version, error.installed_version) == ("torch", "2.9", "1.0")
    assert "2.9" in str(error)
    with pytest.raises(AttributeError, match="no 'NoSuchError' here"):
        exceptions.NoSuchError  # noqa: B018


def test_elastic_names_need_no_torch() -> None:
    """States without a framework, and the interrupt; both asked for torch."""
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from kadril.compat.horovod_path.horovod.common import elastic, exceptions\n"
        "from kadril.elastic import HostsUpdatedInterrupt, HostUpdateResult\n"
        "assert exceptions.HostsUpdatedInterrupt is HostsUpdatedInterrupt\n"
        "assert elastic.HostUpdateResult is HostUpdateResult\n"
        "assert elastic.ObjectState(lambda value: value, lambda: 0, step=3).step == 3\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_function_that_runs_again_after_a_reset_of_the_program() -> None:
    """`run_fn` takes the program's own way to meet again; whoever listens is told of hosts."""
    done: list[str] = []
    state = elastic.ObjectState(lambda value: value, lambda: 0, step=0)
    manager = elastic.notification_manager
    manager.init()

    def train(state: Any, factor: int) -> int:
        done.append("train")
        state.step += 1
        if state.step == 1:
            manager.handle_hosts_updated(1.0, elastic.HostUpdateResult.added)
        state.commit()
        return factor * state.step

    run = elastic.run_fn(train, lambda: done.append("reset"))
    assert run.__name__ == "train"
    assert run(state, factor=10) == 20
    assert done == ["train", "reset", "train"]
    manager.handle_hosts_updated(9.0, elastic.HostUpdateResult.added)  # nobody listens any more
    state.commit()


# horovod.common.util


@pytest.mark.parametrize("length", range(12))
def test_split_list(length: int) -> None:
    for num_parts in range(1, 5):
        parts = util.split_list(list(range(length)), num_parts)
        assert [item for part in parts for item in part] == list(range(length))
        sizes = [len(part) for part in parts]
        assert len(sizes) == num_parts
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1


def test_powers_of_two() -> None:
    powers = [number for number in range(-2, 70) if util.num_rank_is_power_2(number)]
    assert powers == [1, 2, 4, 8, 16, 32, 64]
    assert util.check_num_rank_power_of_2 is util.num_rank_is_power_2


def test_is_iterable() -> None:
    assert [util.is_iterable(each) for each in ([], "x", {}, iter(()), 3, None)] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]


def test_versions() -> None:
    assert util.is_version_greater_equal_than("2.13.0+cpu", "2.9.0")
    assert util.is_version_greater_equal_than("2.9.0", "2.9.0")
    assert util.is_version_greater_equal_than("2.9", "2.9.0")
    assert not util.is_version_greater_equal_than("1.13.1", "2.0.0")
    with pytest.raises(ValueError, match=r"like 1\.2\.3"):
        util.is_version_greater_equal_than("2.0.0", "2.0")
    with pytest.raises(ValueError, match="not a version"):
        util.is_version_greater_equal_than("new", "2.0.0")


def test_variables_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPAT_OLD", "old")
    monkeypatch.delenv("COMPAT_NEW", raising=False)
    with contextlib.suppress(KeyError), util.env(COMPAT_OLD="a", COMPAT_NEW="b", PATH=None):
        assert (os.environ["COMPAT_OLD"], os.environ["COMPAT_NEW"]) == ("a", "b")
        raise KeyError("x")
    assert os.environ["COMPAT_OLD"] == "old"
    assert "COMPAT_NEW" not in os.environ


def test_op_and_average() -> None:
    class Ops:
        Average, Sum, Adasum = 0, 1, 2

    choose = util.get_average_backwards_compatibility_fun(Ops)
    assert choose(None, None) == Ops.Average
    assert choose(Ops.Adasum, None) == Ops.Adasum
    with pytest.warns(DeprecationWarning, match="use op"):
        assert choose(None, False) == Ops.Sum
    with pytest.warns(DeprecationWarning, match="use op"):
        assert choose(None, True) == Ops.Average
    with pytest.raises(ValueError, match="give one of them"):
        choose(Ops.Sum, True)


def test_extensions() -> None:
    assert util.extension_available("torch")
    assert not util.extension_available("tensorflow")
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"no horovod\.tensorflow here: kadril has only torch"):
        util.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    expected = Path("/a/b/mpi_lib" + util.get_ext_suffix())
    assert util.get_extension_full_path("/a/__init__.py", "b", "mpi_lib") == str(expected)
    util.check_installed_version("torch", "9.9")
    assert not util.gpu_available("mxnet")


def test_basics_has_the_names_of_horovod_and_no_others() -> None:
    made = basics.HorovodBasics(__file__, "mpi_lib_v2")
    assert {"init", "rank", "nccl_built", "start_timeline"} <= set(dir(made))
    with pytest.raises(AttributeError, match="'HorovodBasics' object has no attribute 'dance'"):
        made.dance  # noqa: B018


def test_cache_remembers_results_by_arguments() -> None:
    calls: list[tuple[Any, ...]] = []

    @util._cache
    def add(a: int, b: int = 0) -> int:
        calls.append((a, b))
        return a + b

    assert [add(1), add(1), add(1, b=2), add(1, b=2), add(2)] == [1, 1, 3, 3, 2]
    assert calls == [(1, 0), (1, 2), (2, 0)]


def test_questions_to_an_extension(capsys: pytest.CaptureFixture[str]) -> None:
    def name_of(module: Any) -> str:
        return str(module.__name__)

    def fail(module: Any) -> None:
        raise KeyError(module)

    assert util._check_extension_lambda("torch", name_of, "built", False) == "kadril.torch"
    assert capsys.readouterr().out == ""
    assert util._check_extension_lambda("torch", fail, "built", False) is None
    assert util._check_extension_lambda("tensorflow", name_of, "built", True) is None
    assert capsys.readouterr().out == "tensorflow: not built\n"


def test_versions_of_keras() -> None:
    for version, is_new in (("2.10.0", False), ("2.11.0", True), ("3.4.1", True)):
        keras = types.SimpleNamespace(__version__=version)
        assert util.support_non_legacy_keras_optimizers(keras) == is_new


# horovod.runner


def test_arguments_of_a_job() -> None:
    made = horovod.runner._HorovodArgs()
    assert made.num_proc == 1
    assert {value for name, value in vars(made).items() if name != "num_proc"} == {None}
    names = "run_func hosts min_num_proc timeline_filename use_gloo nics cache_capacity"
    assert set(names.split()) <= set(vars(made))
    made.hosts = "a:2"
    assert horovod.runner._HorovodArgs().hosts is None


def test_a_function_in_a_thread() -> None:
    seen: list[object] = []
    thread = threads.in_thread(seen.append, (3,), name="mine", daemon=False)
    thread.join(10)
    assert (seen, thread.name, thread.daemon) == ([3], "mine", False)
    threads.in_thread({}.__getitem__, ("no such key",), silent=True).join(10)
    with pytest.raises(ValueError, match=r"tuple, such as \(value,\), got a str"):
        threads.in_thread(seen.append, "abc")  # type: ignore[arg-type]


def test_a_function_at_an_event() -> None:
    event, stop, called = threading.Event(), threading.Event(), threading.Event()
    thread = threads.on_event(event, called.set, stop=stop, check_stop_interval_s=0.01)
    assert not called.is_set()
    event.set()
    thread.join(10)
    assert called.is_set()
    # One that is stopped before never calls.
    called.clear()
    stop.set()
    threads.on_event(threading.Event(), called.set, stop=stop, check_stop_interval_s=0.01).join(10)
    threads.on_event(event, called.set, stop=stop).join(10)
    assert not called.is_set()
    with pytest.raises(ValueError, match="needs an event"):
        threads.on_event(None, called.set)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give a stop event"):
        threads.on_event(event, called.set, daemon=False)


def test_many_calls_in_threads() -> None:
    all_there = threading.Barrier(3)

    def add(a: int, b: int) -> int:
        all_there.wait(10)  # so they run at once
        return a + b

    args = [[1, 10], [2, 20], [3, 30]]
    assert threads.execute_function_multithreaded(add, args) == {0: 11, 1: 22, 2: 33}
    assert args == [[1, 10], [2, 20], [3, 30]]
    assert threads.execute_function_multithreaded(max, [(1, 2)] * 5, True, 2) == dict.fromkeys(
        range(5), 2
    )
    assert threads.execute_function_multithreaded(add, []) == {}
    with pytest.raises(RuntimeError, match="call 1 of 2 of fail_at_one failed: KeyError") as caught:
        threads.execute_function_multithreaded(fail_at_one, [(0,), (1,)])
    assert isinstance(caught.value.__cause__, KeyError)
    done = threading.Event()
    assert threads.execute_function_multithreaded(done.set, [()], False) is None
    assert done.wait(10)


def fail_at_one(number: int) -> int:
    if number == 1:
        raise KeyError(number)
    return number


def test_hosts(tmp_path: Path) -> None:
    found = hosts.parse_hosts("a:2,b:3")
    assert found == [hosts.HostInfo("a", 2), hosts.HostInfo("b", 3)]
    assert hosts.HostInfo.from_string("a:2") == found[0]
    assert hosts.parse_hosts_and_slots("a:2,b:3") == (["a", "b"], {"a": 2, "b": 3})
    (tmp_path / "hosts").write_text("a slots=2\nb slots=3\n")
    assert hosts.parse_host_files(str(tmp_path / "hosts")) == "a:2,b:3"
    with pytest.raises(ValueError, match="NAME:SLOTS"):
        hosts.parse_hosts("a:x")


def test_timeout() -> None:
    made = timeout.Timeout(1000, "no {activity} within {timeout} s")
    assert 990 < made.remaining() <= 1000
    made.check_time_out_for("answer")
    with pytest.raises(timeout.TimeoutException, match="no answer within 0 s"):
        timeout.Timeout(0, "no {activity} within {timeout} s").check_time_out_for("answer")


# horovod.data


class Numbers(BaseDataLoader):
    """Counts; fails at `fail_at`."""

    def __init__(self, num_batches: int, fail_at: int = -1) -> None:
        self.num_batches = num_batches
        self.fail_at = fail_at
        self.threads: set[str] = set()
        self.num_read = 0

    def __len__(self) -> int:
        return self.num_batches

    def _iterate(self) -> Iterator[int]:
        for number in range(self.num_batches):
            self.threads.add(threading.current_thread().name)
            if number == self.fail_at:
                raise KeyError(number)
            self.num_read += 1
            yield number

    def _process_batch(self, batch: Any) -> Any:
        return 10 * batch


class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    """Reads ahead."""


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read ahead"]


@pytest.mark.parametrize("size", [0, 1, 5, 100])
def test_all_batches_in_order_in_every_epoch(size: int) -> None:
    loader = AsyncNumbers(size, 20)
    for _ in range(3):
        assert list(loader) == [10 * number for number in range(20)]
    assert len(loader) == 20
    assert loader.threads == ({"read ahead"} if size else {"MainThread"})
    assert readers() == []


def test_a_plain_loader() -> None:
    assert list(Numbers(3)) == [0, 10, 20]
    with pytest.raises(NotImplementedError):
        len(BaseDataLoader())
    with pytest.raises(NotImplementedError):
        list(BaseDataLoader())


def test_a_loop_left_early_leaves_no_reader_behind() -> None:
    """Horovod's reader goes on into the next epoch, whose first batches it then mixes up."""
    loader = AsyncNumbers(2, 100)
    for batch in loader:
        if batch == 30:
            break
    loader.close_async_loader()
    assert readers() == []
    assert loader.num_read < 10, "it read ahead, and not all"
    assert list(loader)[:3] == [0, 10, 20]


def test_an_error_of_the_loader_is_raised_in_the_loop_after_what_came_before() -> None:
    loader = AsyncNumbers(2, 100, fail_at=5)
    seen: list[int] = []
    with pytest.raises(KeyError, match="5"):
        seen.extend(loader)
    assert seen == [0, 10, 20, 30, 40]
    assert readers() == []


def test_closing_ends_a_loop_in_another_thread() -> None:
    class Slow(AsyncNumbers):
        def _iterate(self) -> Iterator[int]:
            yield 1
            started.set()
            closing.wait(10)
            yield 2

    started, closing = threading.Event(), threading.Event()
    loader = Slow(2, 2)
    seen: list[int] = []
    loop = threading.Thread(target=lambda: seen.extend(loader))
    loop.start()
    assert started.wait(10)
    threading.Timer(0.05, closing.set).start()
    loader.close_async_loader()
    loop.join(10)
    assert not loop.is_alive()
    assert readers() == []


# Where it is found


def test_path_is_put_first_and_only_once() -> None:
    own = str(compat_path("horovod"))
    assert (Path(own) / "horovod" / "__init__.py").is_file()
    assert compat_variables("horovod", {})["PYTHONPATH"] == own
    first = compat_variables("horovod", {"PYTHONPATH": f"/a::{own}:/b"})["PYTHONPATH"]
    assert first == f"{own}:/a:/b"


def test_a_name_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match=r"--compat takes one of horovod, .*, got 'horoviz'"):
        compat_path("horoviz")


def test_what_lies_beside_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shadow("horovod", ["python", str(tmp_path / "train.py")]) is None
    (tmp_path / "horovod").mkdir()
    found = tmp_path / "horovod" / "__init__.py"
    found.touch()
    assert shadow("horovod", ["python", str(tmp_path / "train.py")]) == found
    assert shadow("horovod", ["python", "-m", "train"]) == Path("horovod/__init__.py")
    assert shadow("horovod", ["python", "/elsewhere/train.py"]) is None
