"""Output of ranks: whole lines, in order, exact bytes, whatever and however much it is (F44)."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from launch_playground import Playground, eventually


def by_rank(output: bytes) -> dict[int, list[bytes]]:
    lines: dict[int, list[bytes]] = defaultdict(list)
    for line in output.split(b"\n")[:-1]:
        match = re.match(rb"\[(\d+)\] ", line)
        assert match, f"a line without a rank: {line[:80]!r}"
        lines[int(match[1])].append(line[match.end() :])
    return lines


@pytest.fixture
def unread_pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    yield read_end, write_end
    os.close(read_end)
    with suppress(OSError):
        os.close(write_end)


def test_lines_stay_whole_and_in_order(playground: Playground) -> None:
    # 120 000 lines from 4 ranks, torn into many small writes.
    program = """
        import os
        rank = int(os.environ["KADRIL_RANK"])
        text = b"".join(b"%d:%d:%s\\n" % (rank, i, b"x" * (i % 37)) for i in range(30_000))
        start = 0
        step = 1009 + 64 * rank
        while start < len(text):
            start += os.write(1, text[start:start + step])
    """
    result = playground.run("-np", "4", playground.write("lines.py", program))
    assert result.code == 0
    lines = by_rank(result.out)
    for rank in range(4):
        assert lines[rank] == [b"%d:%d:%s" % (rank, i, b"x" * (i % 37)) for i in range(30_000)]


def test_streams_are_not_mixed_up(playground: Playground) -> None:
    result = playground.run("-np", "2", "sh", "-c", "echo out; echo err >&2")
    assert sorted(result.out.splitlines()) == [b"[0] out", b"[1] out"]
    assert sorted(result.err.splitlines()) == [b"[0] err", b"[1] err"]


def test_no_prefix(playground: Playground) -> None:
    assert playground.run("-np", "1", "--no-prefix", "printf", "a\\nb").out == b"a\nb\n"


def test_huge_line_strange_bytes_and_no_last_newline(playground: Playground) -> None:
    program = """
        import os
        def write(data):
            while data:
                data = data[os.write(1, data):]
        write(b"\\xff\\xfe\\0 \\x80 caf\\xe9\\r\\n\\n")
        write(b"y" * 10_000_000 + b"\\n")
        write(b"no newline")
    """
    result = playground.run("-np", "2", playground.write("bytes.py", program))
    expected = [b"\xff\xfe\0 \x80 caf\xe9\r", b"", b"y" * 10_000_000, b"no newline"]
    assert by_rank(result.out) == {0: expected, 1: expected}


def test_one_pipe_for_both_streams_keeps_lines_whole(
    playground: Playground, unread_pipe: tuple[int, int]
) -> None:
    # After 2>&1 the two outputs of the launcher are one, and lines are longer than one write.
    program = """
        import os, threading
        def write(fd, letter):
            data = b"\\n".join(letter * 20_000 for _ in range(50)) + b"\\n"
            while data:
                data = data[os.write(fd, data):]
        threads = [threading.Thread(target=write, args=a) for a in ((1, b"o"), (2, b"e"))]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """
    read_end, write_end = unread_pipe
    process = subprocess.Popen(
        [sys.executable, "-m", "kadril", "run", "-np", "2", playground.write("both.py", program)],
        env=playground.environment(),
        stdout=write_end,
        stderr=write_end,
    )
    os.close(write_end)
    printed = b""
    while data := os.read(read_end, 3000):  # slowly, so that both streams have to wait
        printed += data
    assert process.wait(20) == 0
    for lines in by_rank(printed).values():
        assert sorted(lines) == [b"e" * 20_000] * 50 + [b"o" * 20_000] * 50


def test_output_is_timely(playground: Playground) -> None:
    # `print` to a pipe is buffered by Python, unless it is told not to.
    program = "import time; print('now'); time.sleep(1000)"
    launched = playground.start("-np", "1", sys.executable, "-c", program)
    launched.await_output(rb"\[0\] now\n")


def test_progress_bar_is_seen_before_it_ends(playground: Playground) -> None:
    program = """
        import sys, time
        for step in range(1000):
            sys.stderr.write(f"\\rstep {step} of 1000")
            time.sleep(0.05)
    """
    launched = playground.start("-np", "1", playground.write("bar.py", program))
    launched.await_output(rb"(?m)^\[0\] step \d+ of 1000\n", num_matches=2, timeout=10)


def test_logs_hold_the_exact_bytes(playground: Playground) -> None:
    logs = playground.directory / "deep" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank.0.out").write_bytes(b"of an older run")
    script = 'printf "out\\377 $KADRIL_RANK"; printf "err\\n" >&2'
    result = playground.run("-np", "2", "--output-dir", logs, "sh", "-c", script)
    assert result.code == 0
    assert sorted(path.name for path in logs.iterdir()) == [
        "rank.0.err",
        "rank.0.out",
        "rank.1.err",
        "rank.1.out",
    ]
    for rank in (0, 1):
        assert (logs / f"rank.{rank}.out").read_bytes() == b"out\xff %d" % rank
        assert (logs / f"rank.{rank}.err").read_bytes() == b"err\n"


def test_full_disk_ends_the_log_and_not_the_job(playground: Playground) -> None:
    logs = playground.directory / "logs"
    logs.mkdir()
    (logs / "rank.0.out").symlink_to("/dev/full")
    result = playground.run("-np", "2", "--output-dir", logs, "echo", "hello")
    assert result.code == 0
    assert sorted(result.out.splitlines()) == [b"[0] hello", b"[1] hello"]
    assert (logs / "rank.1.out").read_bytes() == b"hello\n"
    assert len(result.report) == 1
    assert "ends early" in result.report[0]


def memory_of(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def test_slow_reader_holds_the_ranks_back_and_not_the_signals(
    playground: Playground, unread_pipe: tuple[int, int]
) -> None:
    # 200 MB that nobody reads: neither kept in memory nor lost, and SIGTERM still works.
    program = """
        import os
        for i in range(2000):
            os.write(1, b"z" * 99_999 + b"\\n")
            os.write(2, b"wrote %d\\n" % i)
    """
    read_end, write_end = unread_pipe
    script = playground.write("flood.py", program)
    launched = playground.start("-np", "1", script, stdout=write_end)
    os.close(write_end)
    launched.await_output(rb"wrote 10\n")  # as much as the launcher holds
    while launched.read_some(timeout=0.3):  # until the rank is silent
        pass
    assert memory_of(launched.pid) < 100 << 20
    launched.send(signal.SIGTERM)
    assert eventually(lambda: len(playground.processes()) <= 2)  # launcher and guardian
    printed = b""
    while data := os.read(read_end, 1 << 20):
        printed += data
    result = launched.finish()
    assert result.code == 143
    num_lines = result.err.count(b"wrote")
    assert 10 < num_lines < 100
    assert printed.count(b"[0] " + b"z" * 99_999 + b"\n") >= num_lines


def test_reader_that_never_reads_can_be_given_up(
    playground: Playground, unread_pipe: tuple[int, int]
) -> None:
    read_end, write_end = unread_pipe
    command = ("head", "-c", "200000", "/dev/zero")
    launched = playground.start("-np", "1", *command, stdout=write_end)
    waiting = array("i", [0])

    def full() -> bool:
        fcntl.ioctl(read_end, termios.FIONREAD, waiting)
        return waiting[0] == 1 << 16

    assert eventually(full)
    assert launched.process.poll() is None
    launched.send(signal.SIGINT)
    # 130 if the launcher had printed the last line and not yet seen that the rank has left.
    assert launched.finish(5.0).code in (0, 130)


@pytest.mark.parametrize("merged", [False, True])
def test_reader_that_leaves_does_not_end_the_job(playground: Playground, merged: bool) -> None:
    # A `tee` or `head` that dies must not cost days of training.
    program = """
        import os
        from pathlib import Path
        for i in range(20_000):
            os.write(1, b"line %d\\n" % i)
        Path("finished").touch()
    """
    script = playground.write("go_on.py", program)
    redirect = "2>&1" if merged else ""
    command = f"{sys.executable} -m kadril run -np 1 {script} {redirect} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        env=playground.environment(),
        cwd=playground.directory,
        capture_output=True,
        timeout=20,
    )
    assert done.returncode == 0
    assert done.stdout == b"[0] line 0\n"
    assert (playground.directory / "finished").exists()
    assert (done.stderr.count(b"stdout of the launcher is gone") == 1) != merged
    assert b"Traceback" not in done.stderr


def test_output_to_a_file(playground: Playground) -> None:
    path = playground.directory / "both"
    with path.open("wb") as file:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "kadril",
                "run",
                "-np",
                "2",
                "sh",
                "-c",
                "echo out; echo err >&2",
            ],
            env=playground.environment(),
            stdout=file,
            stderr=file,
            check=True,
            timeout=20,
        )
    assert sorted(path.read_bytes().splitlines()) == [
        b"[0] err",
        b"[0] out",
        b"[1] err",
        b"[1] out",
    ]


def test_descriptor_of_the_shell_stays_blocking(playground: Playground) -> None:
    # The flag O_NONBLOCK would stay on the shell's terminal after the launcher has gone.
    read_end, write_end = os.pipe()
    try:
        subprocess.run(
            [sys.executable, "-m", "kadril", "run", "-np", "1", "echo", "hello"],
            env=playground.environment(),
            stdout=write_end,
            check=True,
            timeout=20,
        )
        assert os.read(read_end, 100) == b"[0] hello\n"
        assert os.get_blocking(write_end)
    finally:
        os.close(read_end)
        os.close(write_end)
