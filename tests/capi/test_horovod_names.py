"""Every name that adapters and scripts of Horovod use is there, and is called once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import horovod_names
from capi_programs import HERE, find_compiler, run

from kadril import capi


def test_cpp_names(tmp_path: Path) -> None:
    """All names are in the namespace of Horovod; `adapter.cc` calls each function."""
    names = [
        *horovod_names.CPP_TYPES,
        *horovod_names.CPP_FUNCTIONS,
        *(name for name in horovod_names.C_FUNCTIONS if name != "horovod_init_multi_comm"),
    ]
    source = tmp_path / "names.cc"
    lines = [f"using horovod::common::{name};" for name in names]
    source.write_text("\n".join(["#include <horovod/common/operations.h>", *lines, ""]))
    compiler = find_compiler("names.cc")
    subprocess.run([*compiler, "-fsyntax-only", str(source), *capi.cflags()], check=True)
    called = (HERE / "adapter.cc").read_text()
    assert [name for name in horovod_names.CPP_FUNCTIONS if f"{name}(" not in called] == []


def test_python_and_c_names(tmp_path: Path) -> None:
    program = [sys.executable, str(HERE / "names_program.py"), str(tmp_path)]
    done = run([sys.executable, "-m", "kadril", "run", "--compat", "horovod", "-np", "2", *program])
    assert sorted(done.stdout.splitlines()) == ["[0] all well", "[1] all well"]
