"""The command line: what it accepts, what it refuses, and with which exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launch_playground import Playground, Result

from kadril.cli import main
from kadril.errors import ConfigError
from kadril.launch import RunOptions
from kadril.launch.command import parse


def kadril(playground: Playground, *words: str) -> Result:
    done = subprocess.run(
        [sys.executable, "-m", "kadril", *words],
        env=playground.environment(),
        cwd=playground.directory,
        capture_output=True,
        timeout=20,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("words", [("-np", "3"), ("-n", "3"), ("-n3",), ("--num-proc", "3")])
@pytest.mark.parametrize("separator", [(), ("--",)])
def test_number_of_ranks_and_program(words: tuple[str, ...], separator: tuple[str, ...]) -> None:
    options = parse([*words, *separator, "prog", "-np", "7", "--", "-v", "--bind"])
    assert options == RunOptions(command=("prog", "-np", "7", "--", "-v", "--bind"), num_ranks=3)


def test_all_options_with_dashes_and_underscores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "there")
    expected = RunOptions(
        command=("p",),
        num_ranks=2,
        output_dir="d",
        prefix=False,
        bind=True,
        stdin=True,
        grace=1.5,
        kill_grace=0.0,
        environment={"A": "b=c", "HERE": "there"},
        transport="shm",
        patience=3.0,
        verbose=True,
    )
    dashed = "--num-proc 2 --output-dir d --no-prefix --kill-grace 0"
    rest = "--bind --stdin --grace 1.5 -x A=b=c -x HERE --transport shm --patience 3 -v p"
    assert parse([*dashed.split(), *rest.split()]) == expected
    underscored = "--num_proc 2 --output_dir d --no_prefix --kill_grace 0"
    assert parse([*underscored.split(), *rest.split()]) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("true", "how many ranks"),
        ("-np 2", "no program to run"),
        ("-np 2 --", "no program to run"),
        ("-np 0 true", "at least 1"),
        ("-np -3 true", "at least 1"),
        ("-np 1 --grace -1 true", "--grace must be 0 or more"),
        ("-np 1 --kill-grace nan true", "--kill-grace must be 0 or more"),
        ("-np 1 -x KADRIL_RANK=5 true", "KADRIL_RANK is set by the launcher"),
        ("-np 1 -x =5 true", "NAME=VALUE"),
        ("-np 1 -x NO_SUCH_VARIABLE true", "-x NO_SUCH_VARIABLE=VALUE"),
        ("-np 2 -m", "-m needs the name of a module"),
        ("-np 2 -m --epochs 3", "-m needs the name of a module"),
        ("-np 2 --transport mpi true", "--transport mpi cannot be used here: .*mpirun -np N"),
        ("-np 2 --communication mpi true", "--communication mpi cannot be used here: MPI knows"),
        ("-np 2 --communication gloo true", "--communication gloo is --gloo here"),
        ("-np 2 --communication shm true", "--communication shm is no flag .*see --transport"),
        ("-np 2 --transport alone true", "--transport alone is for one rank, and -np says 2"),
        ("-np 2 --transport pigeon true", "--transport: KADRIL_TRANSPORT must be auto"),
        ("-np 2 --patience 0 true", "--patience: KADRIL_PATIENCE must be more than 0"),
    ],
)
def test_values_that_make_no_sense(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(words.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run -np two true", "invalid int value: 'two'"),
        ("run -np 2 --unknown true", "unrecognized arguments: --unknown"),
        ("run -np 2", "kadril run: no program to run"),
        ("run -np 2 --transport pigeon true", "KADRIL_TRANSPORT must be"),
        ("run -np 2 --patience 0 true", "KADRIL_PATIENCE must be more than 0"),
        ("run -np 2 --outputdir logs true", "did you mean --output-dir?"),
        ("run --np 2 true", "unrecognized arguments: --np; did you mean -np?"),
        (
            "waltz",
            "there is no `kadril waltz`; verbs are run, rankfile, mpirun, ddlrun, experiment",
        ),
        ("rnu -np 2 true", "there is no `kadril rnu`; did you mean `kadril run`?"),
        ("Doctor", "did you mean `kadril doctor`?"),
        ("train.py", "did you mean `kadril run -np 2 train.py`?"),
        ("", "VERB"),
    ],
)
def test_bad_usage_exits_2_and_says_why(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(words.split())
    except SystemExit as stopped:  # by argparse
        code = stopped.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_module_with_all_words_that_follow() -> None:
    words = ("package.train", "-v", "-np", "7", "--", "--bind")
    options = parse(["-np", "2", "--bind", "-m", *words])
    assert options == RunOptions(command=("python", "-m", *words), num_ranks=2, bind=True)


@pytest.mark.parametrize("words", [("python", "x.py"), ("python3", "x.py"), ("-m", "x")])
def test_the_python_of_kadril_whatever_path_says(
    playground: Playground, words: tuple[str, ...]
) -> None:
    """Without its environment activated, `python` was another one: No module named 'torch'."""
    playground.write("x.py", "import sys; print(sys.executable, *sys.argv[1:])")
    for name in ("python", "python3"):
        Path(playground.write(name, "#!/bin/sh\necho another; exit 3\n")).chmod(0o755)
    first = {"PATH": f"{playground.directory}:/usr/bin:/bin"}
    result = playground.run("-np", "2", *words, "-a", "b", env=first)
    assert (result.code, result.err) == (0, b"")
    line = f"{sys.executable} -a b"
    assert sorted(result.out.decode().splitlines()) == [f"[0] {line}", f"[1] {line}"]
    result = playground.run("-np", "1", f"{playground.directory}/python", env=first)
    assert (result.code, result.out) == (3, b"[0] another\n")


def test_a_program_that_is_only_beside_the_python_of_kadril(playground: Playground) -> None:
    result = playground.run("-np", "1", "ruff", "--version", env={"PATH": "/usr/bin:/bin"})
    assert result.code == 127
    assert f"beside the Python of kadril: {Path(sys.executable).parent}/ruff" in str(result.err)


def test_bad_usage_in_a_process_of_its_own(playground: Playground) -> None:
    result = playground.run("-np", "2", "--patience", "soon", "true")
    assert result.code == 2
    assert b"--patience: invalid float value: 'soon'" in result.err
    assert b"Traceback" not in result.err


def test_help_of_the_command_and_of_its_verb(playground: Playground) -> None:
    top = kadril(playground, "--help")
    assert top.code == 0
    for verb in (b"run", b"doctor", b"bench", b"env"):
        assert b"\n  " + verb in top.out
    run = kadril(playground, "run", "--help")
    assert run.code == 0
    assert b"--output-dir" in run.out
    assert b"--output_dir" not in run.out  # accepted, not advertised


@pytest.mark.parametrize("program", ["no-such-program", "./missing", "missing.py", "python9.9"])
def test_program_that_is_not_there_is_127(playground: Playground, program: str) -> None:
    result = playground.run("-np", "2", program)
    assert result.code == 127
    assert program.encode() in result.err
    assert b"Traceback" not in result.err
    assert (b"the .py file alone" in result.err) == program.startswith("python")


def test_program_that_is_not_executable_is_126(playground: Playground) -> None:
    result = playground.run("-np", "2", playground.write("plain.txt", "hello"))
    assert result.code == 126
    assert b"chmod +x" in result.err


def test_output_directory_that_cannot_be_one(playground: Playground) -> None:
    result = playground.run("-np", "2", "--output-dir", playground.write("file", ""), "true")
    assert result.code == 2
    assert b"--output-dir" in result.err


def test_too_few_descriptors_is_said_before_the_start(playground: Playground) -> None:
    command = f"ulimit -n 64; exec {sys.executable} -m kadril run -np 20 echo started"
    done = subprocess.run(
        ["bash", "-c", command], env=playground.environment(), capture_output=True, timeout=20
    )
    assert done.returncode == 1
    assert b"the limit is 64" in done.stderr
    assert b"ulimit -n 92" in done.stderr
    assert b"started" not in done.stdout


def test_no_torch_no_numpy_no_native(playground: Playground) -> None:
    # Importing torch takes seconds; a launcher that pays for it is felt at every start.
    program = """
        import sys, kadril.launch.command
        print(sorted({"torch", "numpy", "kadril._native"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, playground.write("imports.py", program)],
        env=playground.environment(),
        capture_output=True,
        check=True,
        timeout=20,
    )
    assert done.stdout == b"[]\n"


def test_usable_from_python(playground: Playground) -> None:
    program = """
        from kadril.launch import run_command
        codes = [run_command(["true"], 2), run_command(["sh", "-c", "exit 7"], 2, kill_grace=1.0)]
        print(codes)
    """
    done = subprocess.run(
        [sys.executable, playground.write("caller.py", program)],
        env=playground.environment(),
        capture_output=True,
        timeout=20,
    )
    assert done.stdout == b"[0, 7]\n"


def test_usable_from_python_in_a_thread(playground: Playground) -> None:
    # Python gives signals to its main thread alone: elsewhere the launcher must do without.
    program = """
        import threading, warnings
        from kadril.launch import run_command
        warnings.simplefilter("ignore")  # fork in a process with threads
        codes = []
        thread = threading.Thread(target=lambda: codes.append(run_command(["true"], 2)))
        thread.start()
        thread.join()
        print(codes)
    """
    done = subprocess.run(
        [sys.executable, playground.write("caller.py", program)],
        env=playground.environment(),
        capture_output=True,
        timeout=20,
    )
    assert done.stdout == b"[0]\n", done.stderr


def test_no_descriptor_is_left_open_in_the_caller(playground: Playground) -> None:
    program = """
        import os
        from kadril.launch import LaunchError, run_command
        run_command(["true"], 2)
        before = sorted(os.listdir("/proc/self/fd"))
        run_command(["true"], 3, output_dir="logs")
        try:
            run_command(["no-such-program"], 2)
        except LaunchError:
            pass
        print(before == sorted(os.listdir("/proc/self/fd")))
    """
    done = subprocess.run(
        [sys.executable, playground.write("caller.py", program)],
        env=playground.environment(),
        cwd=playground.directory,
        capture_output=True,
        timeout=20,
    )
    assert done.stdout == b"True\n", done.stderr


def test_closed_standard_descriptors_are_not_mistaken_for_others(playground: Playground) -> None:
    # With stdout closed, the next socket gets its number, and output would be printed into it.
    command = f"exec {sys.executable} -m kadril run -np 2 sh -c 'echo lost; echo seen >&2' >&- <&-"
    done = subprocess.run(
        ["bash", "-c", command],
        env=playground.environment(),
        stderr=subprocess.PIPE,
        timeout=20,
    )
    assert done.returncode == 0
    assert sorted(done.stderr.splitlines()) == [b"[0] seen", b"[1] seen"]
