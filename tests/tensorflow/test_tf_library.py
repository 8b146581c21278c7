"""The op library and what stands in for it: its cache, a missing compiler, no TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.modules["torch"] = None
import warnings
warnings.simplefilter("always")
import tensorflow as tf
import kadril.tensorflow as hvd
hvd.init()
x = tf.Variable([2.0])
with tf.GradientTape() as tape:
    y = hvd.allreduce(x, op=hvd.Sum) * 3
print(tape.gradient(y, x).numpy().tolist())
print(tf.function(lambda t: hvd.allgather(t))(x).numpy().tolist())
print(hvd.alltoall(x, [1])[1].numpy().tolist(), hvd.broadcast(x, 0).numpy().tolist())
print(hvd.reducescatter(x).numpy().tolist(), int(hvd.size_op()), int(hvd.join()))
try:
    hvd.broadcast(x, 5)
except tf.errors.InvalidArgumentError as error:
    print("refused")
try:
    with tf.Graph().as_default():
        hvd.allreduce(tf.ones(2))
except RuntimeError as error:
    print("compiler" in str(error))
"""


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_without_a_compiler_python_carries_and_says_what_is_lost(tmp_path: Path) -> None:
    """No compiler in PATH, an empty cache, and no torch."""
    done = run(PROGRAM, PATH="", CXX="", XDG_CACHE_HOME=str(tmp_path), KADRIL_TENSORFLOW_OPS="auto")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[3.0]",
        "[2.0]",
        "[1] [2.0]",
        "[2.0] 1 0",
        "refused",
        "True",
    ]
    assert "there is no C++ compiler" in done.stderr
    assert "not in TF1 graphs" in done.stderr


def test_the_cache_is_its_owner_s_alone() -> None:
    from kadril.tensorflow import op_library

    directory = op_library.cache_directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o777)
    try:
        with pytest.raises(op_library.OpLibraryError, match="another user"):
            op_library.cache_directory()
    finally:
        directory.chmod(0o700)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Killed while its compiler ran, a process left an unfinished library for ever."""
    from kadril.tensorflow import op_library

    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o700)
    (tmp_path / "ops-abc.123.tmp").touch()
    op_library.compile_library(str(compiler), tmp_path / "ops-def.so")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["compiler", "ops-def.so"]


def test_importing_without_tensorflow_says_what_to_install() -> None:
    program = """
import sys
sys.modules["tensorflow"] = None
try:
    import kadril.tensorflow
except ImportError as error:
    print(error)
"""
    done = run(program)
    assert done.stdout.strip().endswith("pip install 'kadril[tensorflow]'"), done.stderr
